// Answers of POST /v1/completions, in OpenAI's shape. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/api/parse_completion.h"
#include "coordinator/requests/request.h"

namespace millrace::coordinator {

// The answer to `options`, as JSON or as a whole event stream. `request` must be done; `prompt_sha256`
// is prompt_digest() of its prompt, and `created_s` Unix time. The text of a choice is empty, since
// there is no tokenizer: `token_ids` has the token. `kv_transfer_params` names the prefill to a decode
// engine (docs/vllm.md).
std::string completion_text(const Request& request, const CompletionOptions& options,
                            const std::string& prompt_sha256, int64_t created_s);

}  // namespace millrace::coordinator
