#include "coordinator/api/prefill_fields.h"

#include <array>
#include <charconv>
#include <limits>

#include "coordinator/text/request_id.h"
#include "plan/pattern/head_pattern.h"

namespace millrace::coordinator {

namespace {

constexpr size_t kMaxModelChars = 256;
constexpr size_t kMaxHeadPlanChars = 4096;
constexpr size_t kMaxFieldNameChars = 128;  // of what an error quotes

}  // namespace

std::span<const PrefillFields::Field> PrefillFields::fields() {
  static constexpr std::array<Field, 10> kFields = {{{"model", Kind::kString},
                                                     {"request_id", Kind::kString},
                                                     {"prompt_token_ids", Kind::kTokens},
                                                     {"head_plan", Kind::kString},
                                                     {"min_recall", Kind::kNumber},
                                                     {"recall_by_head", Kind::kBool},
                                                     {"deadline_ms", Kind::kInt},
                                                     {"lease_ms", Kind::kInt},
                                                     {"stream", Kind::kBool},
                                                     {"handover", Kind::kString}}};
  return kFields;
}

std::optional<size_t> PrefillFields::find(std::string_view name) {
  for (size_t at = 0; at < fields().size(); ++at) {
    if (fields()[at].name == name) return at;
  }
  return std::nullopt;
}

Result<void> PrefillFields::begin(std::string_view field) {
  current_ = field.substr(0, kMaxFieldNameChars);
  const auto known = find(field);
  if (!known) {
    std::string names;
    for (const Field& one : fields())
      names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
    return error(Errc::kInvalidArgument, "unknown field '{}'; known: {}", current_, names);
  }
  const uint32_t bit = 1u << *known;
  if ((seen_ & bit) != 0) {
    return error(Errc::kInvalidArgument, "field '{}' given twice", current_);
  }
  seen_ |= bit;
  return {};
}

Error PrefillFields::wrong_type(std::string_view got) const {
  static constexpr std::array<std::string_view, 5> kWanted = {
      "a string", "an integer", "true or false", "an array of integers", "a number"};
  if (current_.empty()) return error(Errc::kInvalidArgument, "the body is not a JSON object");
  return error(Errc::kInvalidArgument, "'{}' must be {}, not {}", current_,
               kWanted[static_cast<size_t>(kind())], got);
}

Result<void> PrefillFields::set_string(std::string_view value) {
  if (current_.empty() || kind() != Kind::kString) return wrong_type("a string");
  if (current_ == "request_id") {
    MR_RETURN_IF_ERROR(check_request_id(value));
    body_.request_id = value;
    return {};
  }
  if (current_ == "handover") return set_handover(value);
  const bool is_model = current_ == "model";
  const size_t limit = is_model ? kMaxModelChars : kMaxHeadPlanChars;
  if (value.size() > limit) {
    return error(Errc::kTooLarge, "'{}' of {} characters, limit {}", current_, value.size(), limit);
  }
  // An empty plan stands for the group's default.
  if (!is_model && !value.empty()) MR_RETURN_IF_ERROR(check_plan_text(value));
  if (is_model) {
    body_.model = value;
  } else {
    body_.options.set_head_plan(std::string(value));
  }
  return {};
}

Result<void> PrefillFields::set_handover(std::string_view value) {
  if (value != "at-end" && value != "streaming") {
    return error(Errc::kInvalidArgument, "'handover' is '{:.40}'; must be at-end or streaming",
                 value);
  }
  body_.options.set_handover(value == "streaming" ? protocol::HANDOVER_STREAMING
                                                  : protocol::HANDOVER_AT_END);
  return {};
}

Result<void> PrefillFields::set_int(int64_t value) {
  if (!current_.empty() && kind() == Kind::kNumber) return set_number(static_cast<double>(value));
  if (current_.empty() || kind() != Kind::kInt) return wrong_type("a number");
  if (value <= 0 || value > limits_.max_duration_ms) {
    return error(Errc::kInvalidArgument, "'{}' is {}; must be 1 to {}", current_, value,
                 limits_.max_duration_ms);
  }
  const auto ms = static_cast<uint64_t>(value);
  if (current_ == "deadline_ms") {
    body_.options.set_deadline_ms(ms);
  } else {
    body_.options.set_lease_ms(ms);
  }
  return {};
}

Result<void> PrefillFields::set_number(double value) {
  if (current_.empty() || kind() != Kind::kNumber) {
    return wrong_type("a number with a fraction or exponent");
  }
  if (!(value >= 0 && value <= 1)) {
    return error(Errc::kInvalidArgument, "'{}' is {:g}; must be 0 to 1", current_, value);
  }
  body_.options.set_min_recall(value);
  return {};
}

Result<void> PrefillFields::set_bool(bool value) {
  if (current_.empty() || kind() != Kind::kBool) return wrong_type("a boolean");
  if (current_ == "stream") {
    body_.stream = value;
  } else {
    body_.options.set_recall_by_head(value);
  }
  return {};
}

Result<void> PrefillFields::set_text(std::string_view value) {
  if (kind() == Kind::kString) return set_string(value);
  if (kind() == Kind::kBool && (value == "true" || value == "false")) {
    return set_bool(value == "true");
  }
  const char* end = value.data() + value.size();
  if (kind() == Kind::kNumber) {
    double number = 0;
    const auto [stop, status] = std::from_chars(value.data(), end, number);
    if (status == std::errc() && stop == end) return set_number(number);
  }
  int64_t number = 0;
  const auto [stop, status] = std::from_chars(value.data(), end, number);
  if (kind() != Kind::kInt || status != std::errc() || stop != end) {
    return wrong_type(fmt::format("'{}'", value.substr(0, 40)));
  }
  return set_int(number);
}

Result<void> PrefillFields::add_token(int64_t token) {
  const size_t position = body_.prompt_token_ids.size();
  if (static_cast<int64_t>(position) >= limits_.max_prompt_tokens) {
    return error(Errc::kTooLarge, "the prompt exceeds the limit of {} tokens",
                 limits_.max_prompt_tokens);
  }
  if (token < 0 || token > std::numeric_limits<int32_t>::max()) {
    return error(Errc::kInvalidArgument, "prompt_token_ids[{}] is {}; token ids are 0 to {}",
                 position, token, std::numeric_limits<int32_t>::max());
  }
  body_.prompt_token_ids.push_back(static_cast<int32_t>(token));
  return {};
}

Result<void> PrefillFields::expect_tokens(size_t count) {
  if (static_cast<int64_t>(count) > limits_.max_prompt_tokens) {
    return error(Errc::kTooLarge, "prompt of {} tokens, limit {}", count,
                 limits_.max_prompt_tokens);
  }
  body_.prompt_token_ids.reserve(count);
  return {};
}

Result<void> PrefillFields::finish() {
  if (body_.model.empty()) {
    current_ = "model";
    return error(Errc::kInvalidArgument, "'model' is missing");
  }
  if (body_.prompt_token_ids.empty()) {
    current_ = "prompt_token_ids";
    return error(Errc::kInvalidArgument, "the prompt is empty");
  }
  if (body_.options.handover() == protocol::HANDOVER_STREAMING && !body_.stream) {
    current_ = "handover";
    return error(Errc::kInvalidArgument,
                 "'handover' streaming requires 'stream' true: the events tell a decode node which "
                 "layers it can pull");
  }
  return {};
}

}  // namespace millrace::coordinator
