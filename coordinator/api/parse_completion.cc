// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/parse_completion.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "common/content/sha256.h"
#include "coordinator/api/completion_fields.h"
#include "coordinator/api/json_reader.h"
#include "coordinator/api/prefill_fields.h"

namespace millrace::coordinator {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they are");

namespace {

class CompletionJson : public JsonSink {
 public:
  CompletionJson(const PrefillBodyLimits& limits, std::span<const CompletionField> fields,
                 std::string_view prompt_name)
      : fields_(fields), max_duration_ms_(limits.max_duration_ms), prefill_(limits, prompt_name) {}

  Result<void> key(std::string_view name) override;
  Result<void> value(const JsonScalar& value) override;
  Result<void> object_begins() override;
  Result<void> object_ends() override;
  Result<void> array_begins() override;
  Result<void> array_ends() override;
  const std::string& blamed() const override { return current_; }

  // The default for chats, unless the body says otherwise: templates write these tokens themselves.
  void leave_out_special_tokens() { prefill_.set_add_special_tokens(false); }
  void set_shape(AnswerShape shape) { options_.shape = shape; }
  ParsedCompletionBody finish();
  // For a chat, whose body this was.
  ParsedCompletionBody finish_chat(std::string_view body);

 private:
  enum class Scope { kBody, kStreamOptions, kMillrace, kSampling, kPrompt, kListInPrompt };

  Result<void> begin_field(std::string_view name);
  // A field of the prefill is named once it has a value: null is as if it were not there, and
  // `millrace` may have it.
  Result<void> begin_pending();
  Result<void> begin_millrace(std::string_view name);
  void begin_sampling(std::string_view name);
  Result<void> add_to_prompt(const JsonScalar& element);
  Result<void> set_bool(bool& option, const JsonScalar& value) const;
  Result<void> set_count(int64_t& count, const JsonScalar& value) const;
  Result<void> set_decline_after(const JsonScalar& value);
  Result<void> require(const JsonScalar& only, const JsonScalar& value) const;
  bool has_prompt() const { return has_list_ || prefill_.has_text() || prefill_.num_tokens() > 0; }
  Error wrong(std::string_view got) const;

  const std::span<const CompletionField> fields_;
  const int64_t max_duration_ms_;
  PrefillFields prefill_;
  CompletionOptions options_;
  Scope scope_ = Scope::kBody;
  std::string current_;
  std::optional<CompletionRole> role_;  // of the current field; nullopt: the field is skipped
  bool is_pending_ = false;             // a field of the prefill that has no value yet
  int passed_over_ = 0;                 // objects and arrays that are open in a skipped field
  bool has_list_ = false;               // the prompt is a list with a list in it
  bool has_messages_ = false;
  bool wants_logprobs_ = false;
  int64_t top_logprobs_ = 0;
  uint32_t seen_ = 0;  // one bit per field
};

// What a role's value must be.
std::string_view wanted(CompletionRole role) {
  switch (role) {
    case CompletionRole::kPrompt:
      return "text or a list of token ids";
    case CompletionRole::kTokens:
      return "a list of token ids";
    case CompletionRole::kSpecialTokens:
    case CompletionRole::kTokensAsIds:
    case CompletionRole::kReturnTokens:
    case CompletionRole::kProgress:
    case CompletionRole::kStream:
    case CompletionRole::kIncludeUsage:
    case CompletionRole::kWantsLogprobs:
      return "true or false";
    case CompletionRole::kMessages:
      return "a list of messages";
    case CompletionRole::kLogprobs:
    case CompletionRole::kTopLogprobs:
      return "an integer from 0 on";
    case CompletionRole::kDeclineAfter:
      return "an integer";
    case CompletionRole::kOutputMode:
      return "tokens";
    case CompletionRole::kMustBeOne:
      return "1";
    case CompletionRole::kMustBeFalse:
      return "false";
    case CompletionRole::kMustBeNull:
      return "null";
    default:
      return "an object";
  }
}

Result<void> CompletionJson::key(std::string_view name) {
  if (passed_over_ > 0) return {};
  if (scope_ == Scope::kMillrace) return begin_millrace(name);
  if (scope_ == Scope::kBody) return begin_field(name);
  if (scope_ == Scope::kSampling) {
    begin_sampling(name);
    return {};
  }
  current_ = "stream_options.include_usage";
  role_.reset();
  if (name == "include_usage") role_ = CompletionRole::kIncludeUsage;
  return {};
}

Result<void> CompletionJson::begin_field(std::string_view name) {
  role_.reset();
  const auto known = std::ranges::find(fields_, name, &CompletionField::name);
  if (known == fields_.end()) return {};
  role_ = known->role;
  current_ = name;
  const uint32_t bit = 1u << (known - fields_.begin());
  if ((seen_ & bit) != 0) {
    return error(Errc::kInvalidArgument, "field '{}' given twice", current_);
  }
  seen_ |= bit;
  is_pending_ = role_ == CompletionRole::kPrefill;
  if (role_ == CompletionRole::kPrompt || role_ == CompletionRole::kTokens ||
      role_ == CompletionRole::kMessages) {
    return prefill_.begin("prompt_token_ids", name);
  }
  if (role_ == CompletionRole::kForTemplate) role_.reset();  // skipped here
  return {};
}

Result<void> CompletionJson::begin_pending() {
  if (!std::exchange(is_pending_, false)) return {};
  return prefill_.begin(current_);
}

Result<void> CompletionJson::begin_millrace(std::string_view name) {
  const std::string shown = fmt::format("millrace.{}", name);
  current_ = shown.substr(0, PrefillFields::kMaxNameChars);
  const auto* known = std::ranges::find(kMillraceFields, name, &CompletionField::name);
  if (known != kMillraceFields.end()) {
    role_ = known->role;
    if (role_ == CompletionRole::kPrefill) return prefill_.begin(name, shown);
    if (!options_.decline_after_ms) return {};
    return error(Errc::kInvalidArgument, "field '{}' given twice", current_);
  }
  std::vector<std::string_view> names;
  for (const CompletionField& field : kMillraceFields) names.push_back(field.name);
  return error(Errc::kInvalidArgument, "unknown field '{}'; 'millrace' may have {}", current_,
               fmt::join(names, ", "));
}

void CompletionJson::begin_sampling(std::string_view name) {
  role_.reset();
  const auto* known = std::ranges::find(kSamplingFields, name, &CompletionField::name);
  if (known == kSamplingFields.end()) return;
  role_ = known->role;
  current_ = fmt::format("sampling_params.{}", name);
}

Result<void> CompletionJson::value(const JsonScalar& value) {
  if (!role_) return {};
  if (scope_ == Scope::kPrompt || scope_ == Scope::kListInPrompt) return add_to_prompt(value);
  // Treated as absent, for clients that write all of OpenAI's fields.
  if (std::holds_alternative<std::monostate>(value) && scope_ != Scope::kMillrace) {
    return {};
  }
  switch (*role_) {
    case CompletionRole::kPrefill:
      MR_RETURN_IF_ERROR(begin_pending());
      return prefill_.set(value);
    case CompletionRole::kPrompt:
      return add_to_prompt(value);
    case CompletionRole::kReturnTokens:
      return set_bool(options_.return_token_ids.emplace(), value);
    case CompletionRole::kProgress:
      return set_bool(options_.return_progress, value);
    case CompletionRole::kDeclineAfter:
      return set_decline_after(value);
    case CompletionRole::kOutputMode:
      return require(std::string_view("tokens"), value);
    case CompletionRole::kSpecialTokens: {
      bool add = true;
      MR_RETURN_IF_ERROR(set_bool(add, value));
      prefill_.set_add_special_tokens(add);
      return {};
    }
    case CompletionRole::kTokensAsIds:
      return set_bool(options_.tokens_as_ids, value);
    case CompletionRole::kStream:
      return set_bool(options_.stream, value);
    case CompletionRole::kIncludeUsage:
      return set_bool(options_.include_usage, value);
    case CompletionRole::kLogprobs: {
      options_.logprobs = 0;
      return set_count(*options_.logprobs, value);
    }
    case CompletionRole::kWantsLogprobs:
      return set_bool(wants_logprobs_, value);
    case CompletionRole::kTopLogprobs:
      return set_count(top_logprobs_, value);
    case CompletionRole::kMustBeOne:
      return require(int64_t{1}, value);
    case CompletionRole::kMustBeFalse:
      return require(false, value);
    default:
      return wrong(kind_of(value));
  }
}

Result<void> CompletionJson::object_begins() {
  if (!role_) {
    ++passed_over_;
    return {};
  }
  MR_RETURN_IF_ERROR(begin_pending());
  if (scope_ != Scope::kBody) return wrong("an object");
  if (role_ == CompletionRole::kStreamOptions) {
    scope_ = Scope::kStreamOptions;
  } else if (role_ == CompletionRole::kMillrace) {
    scope_ = Scope::kMillrace;
  } else if (role_ == CompletionRole::kSampling) {
    scope_ = Scope::kSampling;
  } else {
    return wrong("an object");
  }
  return {};
}

Result<void> CompletionJson::object_ends() {
  if (passed_over_ > 0) {
    --passed_over_;
  } else {
    scope_ = Scope::kBody;
  }
  return {};
}

Result<void> CompletionJson::array_begins() {
  if (!role_) {
    ++passed_over_;
    return {};
  }
  if (role_ == CompletionRole::kMessages) {
    has_messages_ = true;
    role_.reset();
    ++passed_over_;
    return {};
  }
  MR_RETURN_IF_ERROR(begin_pending());
  const bool is_prompt = role_ == CompletionRole::kPrompt || role_ == CompletionRole::kTokens;
  if (!is_prompt) return wrong("an array");
  if (scope_ == Scope::kBody) {
    scope_ = Scope::kPrompt;
    return {};
  }
  if (role_ == CompletionRole::kTokens) return wrong("a list of lists");
  if (scope_ != Scope::kPrompt || has_prompt()) return wrong("several prompts");
  scope_ = Scope::kListInPrompt;
  has_list_ = true;
  return {};
}

Result<void> CompletionJson::array_ends() {
  if (passed_over_ > 0) {
    --passed_over_;
  } else {
    scope_ = scope_ == Scope::kListInPrompt ? Scope::kPrompt : Scope::kBody;
  }
  return {};
}

Result<void> CompletionJson::add_to_prompt(const JsonScalar& element) {
  const auto* text = std::get_if<std::string_view>(&element);
  const bool takes_text = role_ == CompletionRole::kPrompt && scope_ != Scope::kListInPrompt;
  if (text != nullptr && takes_text) {
    if (has_prompt()) return wrong("several prompts");
    return prefill_.set_prompt_text(*text);
  }
  if (scope_ == Scope::kBody) return wrong(kind_of(element));
  if (scope_ == Scope::kPrompt && (has_list_ || prefill_.has_text())) {
    return wrong("several prompts");
  }
  return prefill_.add(element);
}

Result<void> CompletionJson::set_bool(bool& option, const JsonScalar& value) const {
  const auto* given = std::get_if<bool>(&value);
  if (given == nullptr) return wrong(kind_of(value));
  option = *given;
  return {};
}

Result<void> CompletionJson::set_count(int64_t& count, const JsonScalar& value) const {
  const auto* given = std::get_if<int64_t>(&value);
  if (given == nullptr || *given < 0) return wrong(given ? "negative" : kind_of(value));
  count = *given;
  return {};
}

Result<void> CompletionJson::set_decline_after(const JsonScalar& value) {
  const auto* given = std::get_if<int64_t>(&value);
  if (given == nullptr) return wrong(kind_of(value));
  if (*given < 1 || *given > max_duration_ms_) {
    return error(Errc::kInvalidArgument, "'{}' is {}; must be 1 to {}", current_, *given,
                 max_duration_ms_);
  }
  options_.decline_after_ms = *given;
  return {};
}

Result<void> CompletionJson::require(const JsonScalar& only, const JsonScalar& value) const {
  if (value == only) return {};
  return wrong(kind_of(value));
}

Error CompletionJson::wrong(std::string_view got) const {
  switch (*role_) {
    case CompletionRole::kPrefill:
      return prefill_.wrong_type(got);
    case CompletionRole::kMustBeOne:
    case CompletionRole::kMustBeFalse:
    case CompletionRole::kMustBeNull:
      return error(Errc::kInvalidArgument,
                   "'{}' must be {}: a prefill has one prompt and answers with the "
                   "one token after it",
                   current_, wanted(*role_));
    case CompletionRole::kNotTaken:
      return error(Errc::kInvalidArgument, "'{}' is not taken: the model's own is used", current_);
    default:
      return error(Errc::kInvalidArgument, "'{}' must be {}, not {}", current_, wanted(*role_),
                   got);
  }
}

ParsedCompletionBody CompletionJson::finish() {
  ParsedPrefillBody parsed = prefill_.finish();
  if (auto* why = std::get_if<Refusal>(&parsed)) return std::move(*why);
  return CompletionBody{std::get<PrefillBody>(std::move(parsed)), options_};
}

ParsedCompletionBody CompletionJson::finish_chat(std::string_view body) {
  if (!has_messages_) {
    return Refusal(Error(Errc::kInvalidArgument, "'messages' is missing"), "messages");
  }
  if (const auto set = prefill_.set_prompt_text(body); !set.ok()) {
    return Refusal(set.error(), "messages");
  }
  prefill_.set_is_chat();
  set_shape(AnswerShape::kChat);
  if (wants_logprobs_) options_.logprobs = top_logprobs_;
  return finish();
}

}  // namespace

ParsedCompletionBody parse_completion(std::string_view body, const PrefillBodyLimits& limits) {
  CompletionJson json(limits, kCompletionFields, "prompt");
  if (auto refused = read_json_object(body, json)) return *std::move(refused);
  return json.finish();
}

ParsedCompletionBody parse_chat(std::string_view body, const PrefillBodyLimits& limits) {
  CompletionJson json(limits, kChatFields, "messages");
  json.leave_out_special_tokens();
  if (auto refused = read_json_object(body, json)) return *std::move(refused);
  return json.finish_chat(body);
}

ParsedCompletionBody parse_generate(std::string_view body, const PrefillBodyLimits& limits) {
  CompletionJson json(limits, kGenerateFields, "token_ids");
  json.set_shape(AnswerShape::kGenerate);
  if (auto refused = read_json_object(body, json)) return *std::move(refused);
  return json.finish();
}

std::string prompt_digest(const std::vector<int32_t>& token_ids) {
  return sha256_hex(std::as_bytes(std::span(token_ids)));
}

}  // namespace millrace::coordinator
