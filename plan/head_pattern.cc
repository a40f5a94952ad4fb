// SPDX-License-Identifier: Apache-2.0
#include "plan/head_pattern.h"

#include <array>
#include <charconv>
#include <optional>
#include <variant>
#include <vector>

#include "common/quote.h"

namespace millrace::plan {

namespace {

constexpr std::string_view kForms =
    "dense, a-shape:S,W, vertical-slash:V,S, block-sparse:K, elastic:ALPHA,BETA, "
    "adaptive[:GAMMA[,ENOUGH[,ROWS]]], auto";

// Ranges. They bound the memory of an index, and the time to build it, for what a client may ask:
// lists of 64 K columns, slashes or pages a head are three times what any published plan asks for
// (22,032). Positions are int32.
constexpr int32_t kMaxSelected = 1 << 16;
constexpr int32_t kMaxTokens = 1 << 30;
constexpr int32_t kMaxSampledRows = 64;  // all rows of a tile

constexpr std::array kPatterns{Pattern::kDense,       Pattern::kAShape,  Pattern::kVerticalSlash,
                               Pattern::kBlockSparse, Pattern::kElastic, Pattern::kAdaptive};

std::optional<Pattern> pattern_of(std::string_view name) {
  for (const Pattern pattern : kPatterns) {
    if (pattern_name(pattern) == name) return pattern;
  }
  return std::nullopt;
}

// A number of a pattern: where it is stored, and its range.
struct Parameter {
  std::string_view name;
  std::variant<int32_t*, float*> value;
  double min;
  double max;
  bool optional = false;

  // False unless the whole text is a number of the type.
  bool read(std::string_view text) const {
    return std::visit(
        [&](auto* number) {
          const char* end = text.data() + text.size();
          const auto [stop, status] = std::from_chars(text.data(), end, *number);
          return status == std::errc() && stop == end;
        },
        value);
  }
  double number() const {
    return std::visit([](const auto* n) { return static_cast<double>(*n); }, value);
  }
};

// In the order of the text form. Shares below a millionth are errors.
std::vector<Parameter> parameters_of(HeadPattern& head) {
  constexpr double kMinShare = 1e-6F;
  switch (head.pattern) {
    case Pattern::kDense:
      return {};
    case Pattern::kAShape:
      return {{"sink", &head.sink, 0, kMaxSelected}, {"window", &head.window, 1, kMaxTokens}};
    case Pattern::kVerticalSlash:
      return {{"verticals", &head.verticals, 0, kMaxSelected},
              {"slashes", &head.slashes, 0, kMaxSelected}};
    case Pattern::kBlockSparse:
      return {{"top_k", &head.top_k, 1, kMaxSelected}};
    case Pattern::kElastic:
      return {{"alpha", &head.alpha, -kMaxTokens, kMaxTokens}, {"beta", &head.beta, 0, 1}};
    case Pattern::kAdaptive:
      return {{"gamma", &head.gamma, kMinShare, 1, true},
              {"enough", &head.enough, kMinShare, 1, true},
              {"rows", &head.sampled_rows, 1, kMaxSampledRows, true}};
  }
  return {};
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    parts.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  parts.push_back(text);
  return parts;
}

// Fills the pattern's numbers from the text after the colon.
Result<void> read_parameters(std::string_view text, HeadPattern& head) {
  const auto parameters = parameters_of(head);
  const auto arguments = split_at_commas(text);
  if (arguments.size() > parameters.size()) {
    return error(Errc::kInvalidArgument, "{} arguments, expected {}", arguments.size(),
                 parameters.size());
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].empty()) {
      return error(Errc::kInvalidArgument, "{} is missing", parameters[i].name);
    }
    if (!parameters[i].read(arguments[i])) {
      return error(Errc::kInvalidArgument, "{} is {}, expected {}", parameters[i].name,
                   quote(arguments[i]),
                   std::holds_alternative<float*>(parameters[i].value) ? "a number" : "an integer");
    }
  }
  for (size_t i = arguments.size(); i < parameters.size(); ++i) {
    if (!parameters[i].optional) {
      return error(Errc::kInvalidArgument, "{} is missing", parameters[i].name);
    }
  }
  return {};
}

Result<HeadPattern> read_pattern(std::string_view text) {
  const auto colon = text.find(':');
  const auto pattern = pattern_of(text.substr(0, colon));
  if (!pattern) return error(Errc::kInvalidArgument, "unknown pattern");
  HeadPattern head{.pattern = *pattern};
  if (colon != std::string_view::npos) {
    MR_RETURN_IF_ERROR(read_parameters(text.substr(colon + 1), head));
    return head;
  }
  for (const Parameter& parameter : parameters_of(head)) {
    if (parameter.optional) continue;
    return error(Errc::kInvalidArgument, "{} is missing", parameter.name);
  }
  return head;
}

}  // namespace

std::string_view pattern_name(Pattern pattern) {
  switch (pattern) {
    case Pattern::kDense:
      return "dense";
    case Pattern::kAShape:
      return "a-shape";
    case Pattern::kVerticalSlash:
      return "vertical-slash";
    case Pattern::kBlockSparse:
      return "block-sparse";
    case Pattern::kElastic:
      return "elastic";
    case Pattern::kAdaptive:
      return "adaptive";
  }
  return "?";
}

Result<HeadPattern> parse_head_pattern(std::string_view text) {
  const auto head = read_pattern(text);
  if (head.ok()) return checked_head_pattern(*head);
  return error(Errc::kInvalidArgument, "head plan {}: {}; expected one of {}", quote(text),
               head.error().message, kForms);
}

std::string format_head_pattern(const HeadPattern& head) {
  const auto name = pattern_name(head.pattern);
  switch (head.pattern) {
    case Pattern::kDense:
      return std::string(name);
    case Pattern::kAShape:
      return fmt::format("{}:{},{}", name, head.sink, head.window);
    case Pattern::kVerticalSlash:
      return fmt::format("{}:{},{}", name, head.verticals, head.slashes);
    case Pattern::kBlockSparse:
      return fmt::format("{}:{}", name, head.top_k);
    case Pattern::kElastic:
      return fmt::format("{}:{},{}", name, head.alpha, head.beta);
    case Pattern::kAdaptive:
      return fmt::format("{}:{},{},{}", name, head.gamma, head.enough, head.sampled_rows);
  }
  return "?";
}

Result<HeadPattern> checked_head_pattern(HeadPattern head) {
  const auto refuse = [&](std::string_view name, double value, std::string_view expected) {
    return error(Errc::kInvalidArgument, "head plan {}: {} = {:g}, expected {}",
                 pattern_name(head.pattern), name, value, expected);
  };
  for (const Parameter& parameter : parameters_of(head)) {
    const double value = parameter.number();  // NaN fails every comparison
    if (value >= parameter.min && value <= parameter.max) continue;
    return refuse(parameter.name, value, fmt::format("{:g} to {:g}", parameter.min, parameter.max));
  }
  if (!(head.min_recall >= 0 && head.min_recall <= 1)) {
    return refuse("min_recall", head.min_recall, "0 to 1");
  }
  return head;
}

Result<void> check_plan_text(std::string_view text) {
  if (text == kAutoPlan) return {};
  MR_RETURN_IF_ERROR(parse_head_pattern(text));
  return {};
}

}  // namespace millrace::plan
