// SPDX-License-Identifier: Apache-2.0
// Answers of POST /v1/completions and POST /v1/chat/completions, in OpenAI's shapes. Pure.
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

// The answer to `options`, as JSON or as a whole event stream. `request` must be done;
// `prompt_sha256` is prompt_digest() of its prompt, and `created_s` is Unix time. Without a
// tokenizer the text of a choice is empty, and tokens are named by their ids. `kv_transfer_params`
// names the prefill to a decode engine (docs/vllm.md).
std::string completion_text(const Request& request, const CompletionOptions& options,
                            const CompletionWords& words, const std::string& prompt_sha256,
                            int64_t created_s);

}  // namespace millrace::coordinator
