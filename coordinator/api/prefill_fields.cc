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

Result<void> check_length(const PrefillFields::Setting& value, size_t limit) {
  if (value.text.size() <= limit) return {};
  return error(Errc::kTooLarge, "'{}' of {} characters, limit {}", value.shown, value.text.size(),
               limit);
}

Result<void> check_range(const PrefillFields::Setting& value, int64_t least, int64_t most) {
  if (value.integer >= least && value.integer <= most) return {};
  return error(Errc::kInvalidArgument, "'{}' is {}; must be {} to {}", value.shown, value.integer,
               least, most);
}

using Setting = PrefillFields::Setting;
using Kind = PrefillFields::Kind;

Result<void> set_model(const Setting& value) {
  MR_RETURN_IF_ERROR(check_length(value, kMaxModelChars));
  value.body.model = value.text;
  return {};
}

Result<void> set_request_id(const Setting& value) {
  MR_RETURN_IF_ERROR(check_request_id(value.text));
  value.body.request_id = value.text;
  return {};
}

// An empty plan stands for the group's default.
Result<void> set_head_plan(const Setting& value) {
  MR_RETURN_IF_ERROR(check_length(value, kMaxHeadPlanChars));
  if (!value.text.empty()) MR_RETURN_IF_ERROR(plan::check_plan_text(value.text));
  value.body.options.set_head_plan(std::string(value.text));
  return {};
}

Result<void> set_handover(const Setting& value) {
  if (value.text != "at-end" && value.text != "streaming") {
    return error(Errc::kInvalidArgument, "'handover' is '{:.40}'; must be at-end or streaming",
                 value.text);
  }
  value.body.options.set_handover(value.text == "streaming" ? protocol::HANDOVER_STREAMING
                                                            : protocol::HANDOVER_AT_END);
  return {};
}

Result<void> set_cache(const Setting& value) {
  const auto* known =
      std::find_if(kCacheNames.begin(), kCacheNames.end(),
                   [&value](const CacheName& one) { return one.name == value.text; });
  if (known == kCacheNames.end()) {
    return error(Errc::kInvalidArgument, "'{}' is '{:.40}'; must be off, read, write or both",
                 value.shown, value.text);
  }
  value.body.options.set_cache(known->use);
  return {};
}

// An empty salt would stand for none, with which everybody's pages are shared.
Result<void> set_cache_salt(const Setting& value) {
  const std::string_view salt = value.text;
  if (salt.empty()) {
    return error(Errc::kInvalidArgument, "'{}' is empty; leave it out to share with all",
                 value.shown);
  }
  MR_RETURN_IF_ERROR(check_length(value, kMaxSaltChars));
  const bool printable =
      std::all_of(salt.begin(), salt.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!printable) {
    return error(Errc::kInvalidArgument, "'{}' may have printable ASCII characters, and no blanks",
                 value.shown);
  }
  value.body.options.set_cache_salt(std::string(salt));
  return {};
}

Result<void> set_on_disconnect(const Setting& value) {
  if (value.text == "cancel") {
    value.body.on_disconnect = OnDisconnect::kCancel;
  } else if (value.text == "finish") {
    value.body.on_disconnect = OnDisconnect::kFinish;
  } else if (value.text == "suspend") {
    value.body.on_disconnect = OnDisconnect::kSuspend;
  } else {
    return error(Errc::kInvalidArgument, "'{}' is '{:.40}'; must be cancel, finish or suspend",
                 value.shown, value.text);
  }
  return {};
}

Result<void> set_deadline(const Setting& value) {
  MR_RETURN_IF_ERROR(check_range(value, 1, value.limits.max_duration_ms));
  value.body.options.set_deadline_ms(static_cast<uint64_t>(value.integer));
  return {};
}

Result<void> set_lease(const Setting& value) {
  MR_RETURN_IF_ERROR(check_range(value, 1, value.limits.max_duration_ms));
  value.body.options.set_lease_ms(static_cast<uint64_t>(value.integer));
  return {};
}

Result<void> set_priority(const Setting& value) {
  MR_RETURN_IF_ERROR(check_range(value, -kMaxPriority, kMaxPriority));
  value.body.options.set_priority(static_cast<int32_t>(value.integer));
  return {};
}

Result<void> set_kv_budget_tokens(const Setting& value) {
  MR_RETURN_IF_ERROR(check_range(value, 1, value.limits.max_prompt_tokens));
  value.body.kv_budget_tokens = value.integer;
  return {};
}

Result<void> set_kv_budget(const Setting& value) {
  if (!(value.number > 0 && value.number <= 1)) {
    return error(Errc::kInvalidArgument, "'{}' is {:g}; must be above 0, at most 1", value.shown,
                 value.number);
  }
  value.body.options.set_kv_budget(value.number);
  return {};
}

Result<void> set_min_recall(const Setting& value) {
  if (!(value.number >= 0 && value.number <= 1)) {
    return error(Errc::kInvalidArgument, "'{}' is {:g}; must be 0 to 1", value.shown, value.number);
  }
  value.body.options.set_min_recall(value.number);
  return {};
}

Result<void> set_recall_by_head(const Setting& value) {
  value.body.options.set_recall_by_head(value.truth);
  return {};
}

Result<void> set_stream(const Setting& value) {
  value.body.stream = value.truth;
  return {};
}

Result<void> set_return_progress(const Setting& value) {
  value.body.return_progress = value.truth;
  return {};
}

Result<void> set_cache_impure(const Setting& value) {
  value.body.options.set_cache_impure(value.truth);
  return {};
}

Result<void> set_add_special_tokens(const Setting& value) {
  value.body.add_special_tokens = value.truth;
  return {};
}

constexpr auto kFields = std::to_array<PrefillFields::Field>({
    {"model", Kind::kString, set_model},
    {"request_id", Kind::kString, set_request_id},
    {"prompt_token_ids", Kind::kTokens},
    {"text", Kind::kText},
    {"add_special_tokens", Kind::kBool, set_add_special_tokens},
    {"head_plan", Kind::kString, set_head_plan},
    {"min_recall", Kind::kNumber, set_min_recall},
    {"recall_by_head", Kind::kBool, set_recall_by_head},
    {"deadline_ms", Kind::kInt, set_deadline},
    {"lease_ms", Kind::kInt, set_lease},
    {"priority", Kind::kInt, set_priority},
    {"stream", Kind::kBool, set_stream},
    {"handover", Kind::kString, set_handover},
    {"cache", Kind::kString, set_cache},
    {"cache_salt", Kind::kString, set_cache_salt},
    {"cache_impure", Kind::kBool, set_cache_impure},
    {"kv_budget", Kind::kNumber, set_kv_budget},
    {"kv_budget_tokens", Kind::kInt, set_kv_budget_tokens},
    {"on_disconnect", Kind::kString, set_on_disconnect},
    {"return_progress", Kind::kBool, set_return_progress},
});
static_assert(kFields.size() <= 64);  // PrefillFields::seen_

}  // namespace

std::span<const PrefillFields::Field> PrefillFields::fields() {
  return kFields;
}

std::optional<size_t> PrefillFields::find(std::string_view name) {
  const auto found = std::find_if(kFields.begin(), kFields.end(),
                                  [name](const Field& field) { return field.name == name; });
  if (found == kFields.end()) return std::nullopt;
  return static_cast<size_t>(found - kFields.begin());
}

PrefillFields::PrefillFields(const PrefillBodyLimits& limits, std::string_view prompt_name)
    : limits_(limits) {
  body_.prompt_name = prompt_name;
  body_.options.set_cache(protocol::CACHE_BOTH);
}

Result<void> PrefillFields::begin(std::string_view name, std::string_view shown) {
  current_ = shown.substr(0, kMaxNameChars);
  const auto found = find(name);
  if (!found) {
    std::vector<std::string_view> names;
    for (const Field& one : fields()) names.push_back(one.name);
    return error(Errc::kInvalidArgument, "unknown field '{}'; known: {}", current_,
                 fmt::join(names, ", "));
  }
  field_ = *found;
  if (seen_.test(field_)) {
    return error(Errc::kInvalidArgument, "field '{}' given twice", current_);
  }
  seen_.set(field_);
  return {};
}

Error PrefillFields::wrong_type(std::string_view got) const {
  static constexpr std::array<std::string_view, 6> kWanted = {
      "a string", "an integer", "true or false", "an array of integers", "a number", "a string"};
  return error(Errc::kInvalidArgument, "'{}' must be {}, not {}", current_,
               kWanted[static_cast<size_t>(kind())], got);
}

Result<void> PrefillFields::set(const JsonScalar& value) {
  Setting setting{.body = body_, .limits = limits_, .shown = current_};
  const auto take = [&value](auto& into) {
    const auto* given = std::get_if<std::decay_t<decltype(into)>>(&value);
    if (given != nullptr) into = *given;
    return given != nullptr;
  };
  bool fits = false;
  switch (kind()) {
    case Kind::kText:
      if (take(setting.text)) return set_prompt_text(setting.text);
      break;
    case Kind::kString:
      fits = take(setting.text);
      break;
    case Kind::kInt:
      fits = take(setting.integer);
      break;
    case Kind::kNumber:
      fits = take(setting.number) || take(setting.integer);
      if (std::holds_alternative<int64_t>(value))
        setting.number = static_cast<double>(setting.integer);
      break;
    case Kind::kBool:
      fits = take(setting.truth);
      break;
    case Kind::kTokens:
      break;
  }
  return fits ? fields()[field_].set(setting) : wrong_type(kind_of(value));
}

Result<void> PrefillFields::set_prompt_text(std::string_view text) {
  body_.prompt_name = kind() == Kind::kText ? "text" : body_.prompt_name;
  if (std::ssize(text) > limits_.max_text_bytes) {
    return error(Errc::kTooLarge, "'{}' of {} bytes of text, limit {}", body_.prompt_name,
                 text.size(), limits_.max_text_bytes);
  }
  body_.text = text;
  return {};
}

Result<void> PrefillFields::set_text(std::string_view value) {
  if (kind() == Kind::kString) return set(value);
  if (kind() == Kind::kBool && (value == "true" || value == "false")) return set(value == "true");
  const char* end = value.data() + value.size();
  if (kind() == Kind::kNumber) {
    double number = 0;
    const auto [stop, status] = std::from_chars(value.data(), end, number);
    if (status == std::errc() && stop == end) return set(number);
  }
  int64_t number = 0;
  const auto [stop, status] = std::from_chars(value.data(), end, number);
  if (kind() != Kind::kInt || status != std::errc() || stop != end) {
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
