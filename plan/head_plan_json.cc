// SPDX-License-Identifier: Apache-2.0
#include "plan/head_plan_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <charconv>
#include <limits>
#include <optional>

#include "common/system/mapped_file.h"
#include "model/json/json_text.h"
#include "model/json/python_json.h"

namespace millrace::plan {

namespace {

namespace json = boost::json;

constexpr int64_t kMaxPlanBytes = 16 << 20;
constexpr int kMaxPlanDepth = 8;

// What MInference uses for a head that its file leaves out.
constexpr HeadPattern kMInferenceDefault{
    .pattern = Pattern::kVerticalSlash, .verticals = 1000, .slashes = 6096};

std::optional<int32_t> parse_head_number(std::string_view key) {
  int32_t head = -1;
  const auto [stop, status] = std::from_chars(key.data(), key.data() + key.size(), head);
  const bool whole = status == std::errc() && stop == key.data() + key.size();
  return whole && head >= 0 ? std::optional(head) : std::nullopt;
}

std::optional<int32_t> parse_int32(const json::value& value) {
  const auto* integer = value.if_int64();
  if (integer == nullptr || *integer < std::numeric_limits<int32_t>::min() ||
      *integer > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  return static_cast<int32_t>(*integer);
}

// [pattern, p1, p2, score]; the score is how the search behind the file rated its choice.
Result<HeadPattern> parse_minference_head(const json::value& value) {
  const auto* entry = value.if_array();
  const auto* name = entry != nullptr && !entry->empty() ? (*entry)[0].if_string() : nullptr;
  if (name == nullptr || entry->size() < 3 || entry->size() > 4) {
    return error(Errc::kInvalidArgument, "{}: expected [pattern, number, number, score]",
                 model::quote(value));
  }
  const auto first = parse_int32((*entry)[1]);
  const auto second = parse_int32((*entry)[2]);
  if (!first || !second) {
    return error(Errc::kInvalidArgument, "{}: expected two integers", model::quote(value));
  }
  HeadPattern head;
  if (*name == "vertical_and_slash") {
    head = {.pattern = Pattern::kVerticalSlash, .verticals = *first, .slashes = *second};
  } else if (*name == "stream_llm") {
    head = {.pattern = Pattern::kAShape, .sink = *first, .window = *second};
  } else if (*name == "block_sparse") {
    head = {.pattern = Pattern::kBlockSparse, .top_k = *first};
  } else {
    return error(Errc::kInvalidArgument,
                 "{}: expected vertical_and_slash, stream_llm or block_sparse",
                 model::quote(value));
  }
  return checked_head_pattern(head);
}

Result<HeadPattern> parse_text_head(const json::value& value) {
  const auto* text = value.if_string();
  if (text == nullptr) {
    return error(Errc::kInvalidArgument, "{}: expected a pattern as text", model::quote(value));
  }
  return parse_head_pattern({text->data(), text->size()});
}

Result<void> refuse_unknown_keys(const json::object& object,
                                 std::initializer_list<std::string_view> known) {
  for (const auto& member : object) {
    const std::string_view key(member.key().data(), member.key().size());
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return error(Errc::kInvalidArgument, "unknown key {}; expected {}", model::quote(key),
                   fmt::join(known, " or "));
    }
  }
  return {};
}

Result<void> check_layer_count(std::size_t file_layers, const model::ModelConfig& config) {
  if (file_layers == static_cast<std::size_t>(config.num_layers)) return {};
  return error(Errc::kInvalidArgument, "the file has {} layers, the model {}", file_layers,
               config.num_layers);
}

Error wrong_head_count(int64_t file_heads, const model::ModelConfig& config) {
  return error(Errc::kInvalidArgument, "the file has {} query heads, the model {}", file_heads,
               config.num_query_heads);
}

// Sets the heads that one layer's object names.
template <typename ParseHead>
Result<void> read_heads(const json::object& heads, int32_t layer, const model::ModelConfig& config,
                        ParseHead parse_head, HeadPlan& plan) {
  for (const auto& member : heads) {
    const std::string_view key(member.key().data(), member.key().size());
    const auto head = parse_head_number(key);
    if (!head) {
      return error(Errc::kInvalidArgument, "layer {}: {}: expected a head number", layer,
                   model::quote(key));
    }
    if (*head >= config.num_query_heads) return wrong_head_count(int64_t{*head} + 1, config);
    auto pattern = parse_head(member.value());
    if (!pattern.ok()) {
      return error(Errc::kInvalidArgument, "layer {}, head {}: {}", layer, *head,
                   pattern.error().message);
    }
    plan.at(layer, *head) = *pattern;
  }
  return {};
}

// A list over layers of {"head": [pattern, p1, p2, score]}.
Result<HeadPlan> parse_minference_plan(const json::array& layers,
                                       const model::ModelConfig& config) {
  MR_RETURN_IF_ERROR(check_layer_count(layers.size(), config));
  HeadPlan plan(config.num_layers, config.num_query_heads, kMInferenceDefault);
  int32_t file_heads = 0;  // by the highest number: a layer may leave heads out
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto* heads = layers[static_cast<std::size_t>(layer)].if_object();
    if (heads == nullptr) {
      return error(Errc::kInvalidArgument, "layer {}: expected an object of heads", layer);
    }
    MR_RETURN_IF_ERROR(read_heads(*heads, layer, config, parse_minference_head, plan));
    for (const auto& member : *heads) {
      const auto head = parse_head_number({member.key().data(), member.key().size()});
      file_heads = std::max(file_heads, *head + 1);
    }
  }
  if (file_heads != config.num_query_heads) return wrong_head_count(file_heads, config);
  return plan;
}

// {"default": text, "layers": [{"heads": {"head": text}}]}; both keys are optional.
Result<HeadPlan> parse_own_plan(const json::object& object, const model::ModelConfig& config) {
  MR_RETURN_IF_ERROR(refuse_unknown_keys(object, {"default", "layers"}));
  HeadPattern everywhere;
  if (const auto* text = object.if_contains("default")) {
    MR_ASSIGN_OR_RETURN(everywhere, parse_text_head(*text));
  }
  HeadPlan plan(config.num_layers, config.num_query_heads, everywhere);
  const auto* layers_value = object.if_contains("layers");
  if (layers_value == nullptr) return plan;
  const auto* layers = layers_value->if_array();
  if (layers == nullptr) return Error(Errc::kInvalidArgument, "layers: expected a list");
  MR_RETURN_IF_ERROR(check_layer_count(layers->size(), config));

  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto* entry = (*layers)[static_cast<std::size_t>(layer)].if_object();
    const auto* heads_value = entry != nullptr ? entry->if_contains("heads") : nullptr;
    if (entry == nullptr || (heads_value != nullptr && !heads_value->is_object())) {
      return error(Errc::kInvalidArgument, "layer {}: expected {{\"heads\": {{...}}}}", layer);
    }
    MR_RETURN_IF_ERROR(refuse_unknown_keys(*entry, {"heads"}));
    if (heads_value == nullptr) continue;
    MR_RETURN_IF_ERROR(read_heads(heads_value->get_object(), layer, config, parse_text_head, plan));
  }
  return plan;
}

Result<HeadPlan> parse_plan(std::string_view text, const model::ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(const auto value, model::parse_python_json(text, kMaxPlanDepth));
  if (const auto* layers = value.if_array()) return parse_minference_plan(*layers, config);
  if (const auto* object = value.if_object()) return parse_own_plan(*object, config);
  return Error(Errc::kInvalidArgument, "expected a list of layers or an object");
}

}  // namespace

Result<HeadPlan> load_head_plan(const std::string& path, const model::ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(const auto text, read_text_file(path, kMaxPlanBytes));
  auto plan = parse_plan(text, config);
  if (!plan.ok()) {
    return error(plan.error().code, "head plan {}: {}", path, plan.error().message);
  }
  plan->set_name(path);
  return plan;
}

}  // namespace millrace::plan
