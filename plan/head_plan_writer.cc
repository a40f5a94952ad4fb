// SPDX-License-Identifier: Apache-2.0
#include "plan/head_plan_writer.h"

#include <map>
#include <string_view>

#include "common/check.h"

namespace millrace::plan {

namespace {

std::string most_frequent(const HeadPlan& plan) {
  std::map<std::string, int64_t> counts;
  std::string best;
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t head = 0; head < plan.num_heads(); ++head) {
      ++counts[format_head_pattern(plan.at(layer, head))];
    }
  }
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t head = 0; head < plan.num_heads(); ++head) {
      const auto text = format_head_pattern(plan.at(layer, head));
      if (best.empty() || counts[text] > counts[best]) best = text;
    }
  }
  return best;
}

// Appends an item, with `between` in front of all but the first.
void append(std::string& list, std::string_view between, const std::string& item) {
  if (!list.empty()) list += between;
  list += item;
}

}  // namespace

std::string plan_json(const HeadPlan& plan) {
  const auto standard = most_frequent(plan);
  std::string layers;
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    std::string heads;
    for (int32_t head = 0; head < plan.num_heads(); ++head) {
      const auto text = format_head_pattern(plan.at(layer, head));
      if (text != standard) append(heads, ", ", fmt::format("\"{}\": \"{}\"", head, text));
    }
    append(layers, ",\n", fmt::format("  {{\"heads\": {{{}}}}}", heads));
  }
  return fmt::format("{{\"default\": \"{}\",\n \"layers\": [\n{}]}}\n", standard, layers);
}

Result<std::string> minference_plan_json(const HeadPlan& plan, std::span<const double> scores) {
  MR_CHECK(std::ssize(scores) == int64_t{plan.num_layers()} * plan.num_heads(), "{} scores",
           scores.size());
  std::string layers;
  auto score = scores.begin();
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    std::string heads;
    for (int32_t head = 0; head < plan.num_heads(); ++head, ++score) {
      const auto entry = [&](std::string_view name, int32_t first, int32_t second) {
        append(heads, ", ",
               fmt::format("\"{}\": [\"{}\", {}, {}, {:.4f}]", head, name, first, second, *score));
      };
      const auto& pattern = plan.at(layer, head);
      switch (pattern.pattern) {
        case Pattern::kVerticalSlash:
          entry("vertical_and_slash", pattern.verticals, pattern.slashes);
          break;
        case Pattern::kAShape:
          entry("stream_llm", pattern.sink, pattern.window);
          break;
        case Pattern::kBlockSparse:
          entry("block_sparse", pattern.top_k, 0);
          break;
        case Pattern::kDense:
        case Pattern::kElastic:
        case Pattern::kAdaptive:
          return error(Errc::kUnsupported, "layer {}, head {}: MInference's files have no {}",
                       layer, head, format_head_pattern(pattern));
      }
    }
    append(layers, ",\n ", fmt::format("{{{}}}", heads));
  }
  return fmt::format("[{}]\n", layers);
}

}  // namespace millrace::plan
