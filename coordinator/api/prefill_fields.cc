// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/prefill_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "coordinator/text/request_id.h"
#include "plan/head_pattern.h"

namespace millrace::coordinator {

namespace {

constexpr size_t kMaxModelChars = 256;
constexpr size_t kMaxHeadPlanChars = 4096;
constexpr size_t kMaxSaltChars = 256;

struct CacheName {
  std::string_view name;
  protocol::CacheUse use;
};
constexpr std::array<CacheName, 4> kCacheNames = {{{"off", protocol::CACHE_OFF},
                                                   {"read", protocol::CACHE_READ},
                                                   {"write", protocol::CACHE_WRITE},
                                                   {"both", protocol::CACHE_BOTH}}};

}  // namespace

std::span<const PrefillFields::Field> PrefillFields::fields() {
  static constexpr std::array<Field, 18> kFields = {{{"model", Kind::kString},
                                                     {"request_id", Kind::kString},
                                                     {"prompt_token_ids", Kind::kTokens},
                                                     {"text", Kind::kText},
                                                     {"add_special_tokens", Kind::kBool},
                                                     {"head_plan", Kind::kString},
                                                     {"min_recall", Kind::kNumber},
                                                     {"recall_by_head", Kind::kBool},
                                                     {"deadline_ms", Kind::kInt},
                                                     {"lease_ms", Kind::kInt},
                                                     {"priority", Kind::kInt},
                                                     {"stream", Kind::kBool},
                                                     {"handover", Kind::kString},
                                                     {"cache", Kind::kString},
                                                     {"cache_salt", Kind::kString},
                                                     {"cache_impure", Kind::kBool},
                                                     {"kv_budget", Kind::kNumber},
                                                     {"kv_budget_tokens", Kind::kInt}}};
  return kFields;
}

const PrefillFields::Field* PrefillFields::find(std::string_view name) {
  const auto found = std::find_if(fields().begin(), fields().end(),
                                  [name](const Field& field) { return field.name == name; });
  return found == fields().end() ? nullptr : &*found;
}

PrefillFields::PrefillFields(const PrefillBodyLimits& limits, std::string_view prompt_name)
    : limits_(limits) {
  body_.prompt_name = prompt_name;
  body_.options.set_cache(protocol::CACHE_BOTH);
}

bool PrefillFields::was_given(std::string_view name) const {
  return (seen_ >> (find(name) - fields().data()) & 1u) != 0;
}

Result<void> PrefillFields::begin(std::string_view name, std::string_view shown) {
  current_ = shown.substr(0, kMaxNameChars);
  field_ = find(name);
  if (field_ == nullptr) {
    std::vector<std::string_view> names;
    for (const Field& one : fields()) names.push_back(one.name);
    return error(Errc::kInvalidArgument, "unknown field '{}'; known: {}", current_,
                 fmt::join(names, ", "));
  }
  const uint32_t bit = 1u << (field_ - fields().data());
  if ((seen_ & bit) != 0) {
    return error(Errc::kInvalidArgument, "field '{}' given twice", current_);
  }
  seen_ |= bit;
  return {};
}

Error PrefillFields::wrong_type(std::string_view got) const {
  static constexpr std::array<std::string_view, 6> kWanted = {
      "a string", "an integer", "true or false", "an array of integers", "a number", "a string"};
  return error(Errc::kInvalidArgument, "'{}' must be {}, not {}", current_,
               kWanted[static_cast<size_t>(field_->kind)], got);
}

Result<void> PrefillFields::set(const JsonScalar& value) {
  const auto* text = std::get_if<std::string_view>(&value);
  const auto* integer = std::get_if<int64_t>(&value);
  const auto* fraction = std::get_if<double>(&value);
  const auto* boolean = std::get_if<bool>(&value);
  switch (field_->kind) {
    case Kind::kString:
      if (text != nullptr) return set_string(*text);
      break;
    case Kind::kInt:
      if (integer != nullptr) return set_integer(*integer);
      break;
    case Kind::kNumber:
      if (integer != nullptr) return set_number(static_cast<double>(*integer));
      if (fraction != nullptr) return set_number(*fraction);
      break;
    case Kind::kBool:
      if (boolean == nullptr) break;
      set_bool(*boolean);
      return {};
    case Kind::kText:
      if (text != nullptr) return set_prompt_text(*text);
      break;
    case Kind::kTokens:
      break;
  }
  return wrong_type(kind_of(value));
}

Result<void> PrefillFields::set_prompt_text(std::string_view text) {
  body_.prompt_name = field_->kind == Kind::kText ? "text" : body_.prompt_name;
  if (std::ssize(text) > limits_.max_text_bytes) {
    return error(Errc::kTooLarge, "'{}' of {} bytes of text, limit {}", body_.prompt_name,
                 text.size(), limits_.max_text_bytes);
  }
  body_.text = text;
  return {};
}

Result<void> PrefillFields::set_string(std::string_view value) {
  if (field_->name == "request_id") {
    MR_RETURN_IF_ERROR(check_request_id(value));
    body_.request_id = value;
    return {};
  }
  if (field_->name == "handover") return set_handover(value);
  if (field_->name == "cache") return set_cache(value);
  if (field_->name == "cache_salt") return set_cache_salt(value);
  const bool is_model = field_->name == "model";
  const size_t limit = is_model ? kMaxModelChars : kMaxHeadPlanChars;
  if (value.size() > limit) {
    return error(Errc::kTooLarge, "'{}' of {} characters, limit {}", current_, value.size(), limit);
  }
  // An empty plan stands for the group's default.
  if (!is_model && !value.empty()) MR_RETURN_IF_ERROR(plan::check_plan_text(value));
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

Result<void> PrefillFields::set_cache(std::string_view value) {
  const auto* known = std::find_if(kCacheNames.begin(), kCacheNames.end(),
                                   [value](const CacheName& one) { return one.name == value; });
  if (known == kCacheNames.end()) {
    return error(Errc::kInvalidArgument, "'{}' is '{:.40}'; must be off, read, write or both",
                 current_, value);
  }
  body_.options.set_cache(known->use);
  return {};
}

Result<void> PrefillFields::set_cache_salt(std::string_view value) {
  // It would stand for no salt at all, with which everybody's pages are shared.
  if (value.empty()) {
    return error(Errc::kInvalidArgument, "'{}' is empty; leave it out to share with all", current_);
  }
  if (value.size() > kMaxSaltChars) {
    return error(Errc::kTooLarge, "'{}' of {} characters, limit {}", current_, value.size(),
                 kMaxSaltChars);
  }
  const bool printable =
      std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!printable) {
    return error(Errc::kInvalidArgument, "'{}' may have printable ASCII characters, and no blanks",
                 current_);
  }
  body_.options.set_cache_salt(std::string(value));
  return {};
}

Result<void> PrefillFields::set_integer(int64_t value) {
  if (field_->name == "kv_budget_tokens") return set_kv_budget_tokens(value);
  if (field_->name == "priority") return set_priority(value);
  if (value <= 0 || value > limits_.max_duration_ms) {
    return error(Errc::kInvalidArgument, "'{}' is {}; must be 1 to {}", current_, value,
                 limits_.max_duration_ms);
  }
  const auto ms = static_cast<uint64_t>(value);
  if (field_->name == "deadline_ms") {
    body_.options.set_deadline_ms(ms);
  } else {
    body_.options.set_lease_ms(ms);
  }
  return {};
}

Result<void> PrefillFields::set_priority(int64_t value) {
  if (value < -kMaxPriority || value > kMaxPriority) {
    return error(Errc::kInvalidArgument, "'{}' is {}; must be {} to {}", current_, value,
                 -kMaxPriority, kMaxPriority);
  }
  body_.options.set_priority(static_cast<int32_t>(value));
  return {};
}

Result<void> PrefillFields::set_number(double value) {
  return field_->name == "kv_budget" ? set_kv_budget(value) : set_min_recall(value);
}

Result<void> PrefillFields::set_kv_budget(double value) {
  if (!(value > 0 && value <= 1)) {
    return error(Errc::kInvalidArgument, "'{}' is {:g}; must be above 0, at most 1", current_,
                 value);
  }
  body_.options.set_kv_budget(value);
  return {};
}

Result<void> PrefillFields::set_kv_budget_tokens(int64_t value) {
  if (value <= 0 || value > limits_.max_prompt_tokens) {
    return error(Errc::kInvalidArgument, "'{}' is {}; must be 1 to {}", current_, value,
                 limits_.max_prompt_tokens);
  }
  body_.kv_budget_tokens = value;
  return {};
}

Result<void> PrefillFields::set_min_recall(double value) {
  if (!(value >= 0 && value <= 1)) {
    return error(Errc::kInvalidArgument, "'{}' is {:g}; must be 0 to 1", current_, value);
  }
  body_.options.set_min_recall(value);
  return {};
}

void PrefillFields::set_bool(bool value) {
  if (field_->name == "stream") {
    body_.stream = value;
  } else if (field_->name == "cache_impure") {
    body_.options.set_cache_impure(value);
  } else if (field_->name == "add_special_tokens") {
    body_.add_special_tokens = value;
  } else {
    body_.options.set_recall_by_head(value);
  }
}

Result<void> PrefillFields::set_text(std::string_view value) {
  const Kind kind = field_->kind;
  if (kind == Kind::kString) return set(value);
  if (kind == Kind::kBool && (value == "true" || value == "false")) return set(value == "true");
  const char* end = value.data() + value.size();
  if (kind == Kind::kNumber) {
    double number = 0;
    const auto [stop, status] = std::from_chars(value.data(), end, number);
    if (status == std::errc() && stop == end) return set(number);
  }
  int64_t number = 0;
  const auto [stop, status] = std::from_chars(value.data(), end, number);
  if (kind != Kind::kInt || status != std::errc() || stop != end) {
    return wrong_type(fmt::format("'{}'", value.substr(0, 40)));
  }
  return set(number);
}

Result<void> PrefillFields::add(const JsonScalar& element) {
  const auto* token = std::get_if<int64_t>(&element);
  if (token != nullptr) return add_token(*token);
  return wrong_type(fmt::format("an array with {}", kind_of(element)));
}

Result<void> PrefillFields::add_token(int64_t token) {
  const size_t position = body_.prompt_token_ids.size();
  if (static_cast<int64_t>(position) >= limits_.max_prompt_tokens) {
    return error(Errc::kTooLarge, "the prompt exceeds the limit of {} tokens",
                 limits_.max_prompt_tokens);
  }
  if (token < 0 || token > std::numeric_limits<int32_t>::max()) {
    return error(Errc::kInvalidArgument, "{}[{}] is {}; token ids are 0 to {}", current_, position,
                 token, std::numeric_limits<int32_t>::max());
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

std::optional<Refusal> PrefillFields::check_kv_budget() {
  const auto invalid = [](std::string message, std::string_view field) {
    return Refusal(Error(Errc::kInvalidArgument, std::move(message)), std::string(field));
  };
  const bool by_tokens = body_.kv_budget_tokens > 0;
  if (by_tokens && was_given("kv_budget")) {
    return invalid("the budget is 'kv_budget' or 'kv_budget_tokens', not both", "kv_budget_tokens");
  }
  const double share = body_.options.kv_budget();
  if (!by_tokens && (share == 0 || share == 1)) return {};
  const std::string_view field = by_tokens ? "kv_budget_tokens" : "kv_budget";
  const std::string_view what = by_tokens ? "'kv_budget_tokens'" : "'kv_budget' below 1";
  if (body_.options.handover() == protocol::HANDOVER_STREAMING) {
    return invalid(
        fmt::format("{} requires 'handover' at-end: which pages are kept is known at the end",
                    what),
        field);
  }
  if ((body_.options.cache() & protocol::CACHE_WRITE) != 0) {
    if (was_given("cache")) {
      return invalid(fmt::format("{} requires 'cache' off or read: later prompts cannot begin with "
                                 "a cache that is kept in part",
                                 what),
                     "cache");
    }
    body_.options.set_cache(protocol::CACHE_READ);
  }
  return {};
}

ParsedPrefillBody PrefillFields::finish() {
  const auto invalid = [](const char* message, std::string_view field) {
    return Refusal(Error(Errc::kInvalidArgument, message), std::string(field));
  };
  if (body_.model.empty()) return invalid("'model' is missing", "model");
  if (body_.text && was_given("text") && was_given("prompt_token_ids")) {
    return invalid("the prompt is 'text' or 'prompt_token_ids', not both", "text");
  }
  if (!body_.text && body_.prompt_token_ids.empty()) {
    return invalid("the prompt is empty", body_.prompt_name);
  }
  if (body_.options.handover() == protocol::HANDOVER_STREAMING && !body_.stream) {
    return invalid(
        "'handover' streaming requires 'stream' true: the events tell a decode node which layers "
        "it can pull",
        "handover");
  }
  if (auto refusal = check_kv_budget()) return std::move(*refusal);
  return std::move(body_);
}

}  // namespace millrace::coordinator
