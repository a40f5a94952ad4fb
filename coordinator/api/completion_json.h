// SPDX-License-Identifier: Apache-2.0
// Answers of POST /v1/completions and POST /v1/chat/completions, in OpenAI's shapes, and of POST
// /inference/v1/generate, in vLLM's. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/api/parse_completion.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

// What a model's tokenizer says; empty where there is no tokenizer.
struct CompletionWords {
  std::string text;                 // of the first token
  std::vector<std::string> tokens;  // of listed_tokens(), as OpenAI writes them
};

// The tokens that the answer names: the first one, then those in the list of log probabilities;
// none where no list is wanted.
std::vector<int32_t> listed_tokens(const Request& request, const CompletionOptions& options);

// What an answer says of a prompt besides its length. Token ids are empty where they are not wanted.
struct AnsweredPrompt {
  std::string sha256;                    // prompt_digest()
  std::vector<int32_t> token_ids;        // for whoever posted it (return_token_ids)
  std::vector<int32_t> for_the_decoder;  // for an engine that would tokenize the same prompt again
};

// The answer to `options`, as JSON or as a whole event stream. `request` must be done; `created_s`
// is Unix time. Without a tokenizer the text of a choice is empty, and tokens are named by their
// ids. `kv_transfer_params` names the prefill to a decode engine (docs/vllm.md). With token ids the
// text is long: do not call this on the deciding thread.
std::string completion_text(const Request& request, const CompletionOptions& options,
                            const CompletionWords& words, const AnsweredPrompt& prompt,
                            int64_t created_s);

// The answer in the same shape to a prompt that is not prefilled: no token, no cache, and
// `kv_transfer_params` with which a decode engine computes the prompt itself.
std::string declined_text(const std::string& request_id, const std::string& model,
                          int64_t num_tokens, const CompletionOptions& options, const Error& why,
                          int64_t created_s);

// An error at the end of a stream that has begun, as vLLM has it there: `error` is the body of the
// answer that it would have been.
std::string stream_error(std::string error);

// How far a prefill is, as an event of a stream that has no token yet.
std::string completion_progress(const Request& request, const CompletionOptions& options,
                                int64_t created_s, TimePoint now);

}  // namespace millrace::coordinator
