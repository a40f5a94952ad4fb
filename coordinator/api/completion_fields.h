// SPDX-License-Identifier: Apache-2.0
// The fields of POST /v1/completions, POST /v1/chat/completions and POST /inference/v1/generate that
// mean something here. All others are for the decode engine, to which a router sends the same body
// afterwards, and are ignored.
#pragma once

#include <array>
#include <string_view>

namespace millrace::coordinator {

enum class CompletionRole {
  kPrefill,        // as in POST /v1/prefill
  kPrompt,         // text or token ids, flat or as the only member of a list
  kTokens,         // token ids, flat
  kMessages,       // a list; the chat template makes the prompt from it
  kForTemplate,    // anything; the chat template sees it as well
  kSpecialTokens,  // a boolean
  kTokensAsIds,    // a boolean
  kReturnTokens,   // a boolean
  kProgress,       // a boolean
  kStream,         // a boolean
  kStreamOptions,  // an object with kIncludeUsage
  kIncludeUsage,   // a boolean
  kLogprobs,       // an integer from 0 on
  kWantsLogprobs,  // a boolean
  kTopLogprobs,    // an integer from 0 on, with kWantsLogprobs
  kMillrace,       // an object with kMillraceFields
  kDeclineAfter,   // an integer from 1 on, with kMillrace
  kSampling,       // an object with kSamplingFields
  kOutputMode,     // "tokens"
  // Fields that one greedy token after one prompt can serve only if they have this value.
  kMustBeOne,
  kMustBeFalse,
  kMustBeNull,
  kNotTaken,  // must be null: the model's own template is used
};

struct CompletionField {
  std::string_view name;
  CompletionRole role;
};

// A null counts as an absent field.
inline constexpr std::array<CompletionField, 23> kCompletionFields = {
    {{"model", CompletionRole::kPrefill},
     {"request_id", CompletionRole::kPrefill},
     {"priority", CompletionRole::kPrefill},
     {"cache_salt", CompletionRole::kPrefill},
     {"prompt", CompletionRole::kPrompt},
     {"add_special_tokens", CompletionRole::kSpecialTokens},
     {"return_tokens_as_token_ids", CompletionRole::kTokensAsIds},
     {"return_token_ids", CompletionRole::kReturnTokens},
     {"return_progress", CompletionRole::kProgress},
     {"stream", CompletionRole::kStream},
     {"stream_options", CompletionRole::kStreamOptions},
     {"logprobs", CompletionRole::kLogprobs},
     {"millrace", CompletionRole::kMillrace},
     {"max_tokens", CompletionRole::kMustBeOne},
     {"max_completion_tokens", CompletionRole::kMustBeOne},
     {"n", CompletionRole::kMustBeOne},
     {"best_of", CompletionRole::kMustBeOne},
     {"echo", CompletionRole::kMustBeFalse},
     {"use_beam_search", CompletionRole::kMustBeFalse},
     {"suffix", CompletionRole::kMustBeNull},
     {"prompt_embeds", CompletionRole::kMustBeNull},
     {"prompt_logprobs", CompletionRole::kMustBeNull},
     {"truncate_prompt_tokens", CompletionRole::kMustBeNull}}};

// kMessages and kForTemplate are read by the tokenizer's process (tokenizer/millrace_tokenizer.py).
inline constexpr std::array<CompletionField, 28> kChatFields = {
    {{"model", CompletionRole::kPrefill},
     {"request_id", CompletionRole::kPrefill},
     {"priority", CompletionRole::kPrefill},
     {"cache_salt", CompletionRole::kPrefill},
     {"messages", CompletionRole::kMessages},
     {"tools", CompletionRole::kForTemplate},
     {"documents", CompletionRole::kForTemplate},
     {"reasoning_effort", CompletionRole::kForTemplate},
     {"chat_template_kwargs", CompletionRole::kForTemplate},
     {"add_generation_prompt", CompletionRole::kForTemplate},
     {"continue_final_message", CompletionRole::kForTemplate},
     {"chat_template", CompletionRole::kNotTaken},
     {"add_special_tokens", CompletionRole::kSpecialTokens},
     {"return_tokens_as_token_ids", CompletionRole::kTokensAsIds},
     {"return_token_ids", CompletionRole::kReturnTokens},
     {"return_progress", CompletionRole::kProgress},
     {"stream", CompletionRole::kStream},
     {"stream_options", CompletionRole::kStreamOptions},
     {"logprobs", CompletionRole::kWantsLogprobs},
     {"top_logprobs", CompletionRole::kTopLogprobs},
     {"millrace", CompletionRole::kMillrace},
     {"max_tokens", CompletionRole::kMustBeOne},
     {"max_completion_tokens", CompletionRole::kMustBeOne},
     {"n", CompletionRole::kMustBeOne},
     {"echo", CompletionRole::kMustBeFalse},
     {"use_beam_search", CompletionRole::kMustBeFalse},
     {"prompt_logprobs", CompletionRole::kMustBeNull},
     {"truncate_prompt_tokens", CompletionRole::kMustBeNull}}};

inline constexpr std::array<CompletionField, 15> kGenerateFields = {
    {{"model", CompletionRole::kPrefill},
     {"request_id", CompletionRole::kPrefill},
     {"priority", CompletionRole::kPrefill},
     {"cache_salt", CompletionRole::kPrefill},
     {"token_ids", CompletionRole::kTokens},
     {"sampling_params", CompletionRole::kSampling},
     {"return_token_ids", CompletionRole::kReturnTokens},
     {"return_progress", CompletionRole::kProgress},
     {"output_mode", CompletionRole::kOutputMode},
     {"stream", CompletionRole::kStream},
     {"stream_options", CompletionRole::kStreamOptions},
     {"millrace", CompletionRole::kMillrace},
     {"features", CompletionRole::kMustBeNull},
     {"content_parts", CompletionRole::kMustBeNull},
     {"ec_transfer_params", CompletionRole::kMustBeNull}}};

inline constexpr std::array<CompletionField, 5> kSamplingFields = {
    {{"max_tokens", CompletionRole::kMustBeOne},
     {"n", CompletionRole::kMustBeOne},
     {"logprobs", CompletionRole::kLogprobs},
     {"prompt_logprobs", CompletionRole::kMustBeNull},
     {"truncate_prompt_tokens", CompletionRole::kMustBeNull}}};

// What `millrace` may have. All but decline_after_ms are fields of POST /v1/prefill that OpenAI has
// no place for, with the same rules. Hand-over is not among them: there is no manifest to pull by
// before the answer. The priority is also here for bodies that afterwards go to a decode engine
// without priorities.
inline constexpr std::array<CompletionField, 10> kMillraceFields = {
    {{"head_plan", CompletionRole::kPrefill},
     {"min_recall", CompletionRole::kPrefill},
     {"deadline_ms", CompletionRole::kPrefill},
     {"decline_after_ms", CompletionRole::kDeclineAfter},
     {"lease_ms", CompletionRole::kPrefill},
     {"priority", CompletionRole::kPrefill},
     {"cache", CompletionRole::kPrefill},
     {"cache_salt", CompletionRole::kPrefill},
     {"cache_impure", CompletionRole::kPrefill},
     {"on_disconnect", CompletionRole::kPrefill}}};

}  // namespace millrace::coordinator
