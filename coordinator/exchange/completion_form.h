// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions and POST /v1/chat/completions: OpenAI's shapes. The answer holds the first
// token and what a decode engine needs to find the cache. A stream is sent whole when the prefill
// is done: until then an error can still have its own status.
#pragma once

#include <string>

#include "coordinator/api/parse_completion.h"
#include "coordinator/exchange/prompt_form.h"
#include "coordinator/http/http_shared.h"

namespace millrace::coordinator {

class CompletionForm : public PromptForm {
 public:
  explicit CompletionForm(HttpShared& shared) : shared_(shared) {}

  ParsedPrefillBody parse(const RequestReader::Request& request, const Route& route) override;
  void see_prompt(const std::vector<int32_t>& token_ids) override;
  awaitable<HttpReply> reply(const Request& record) override;

 private:
  HttpShared& shared_;
  CompletionOptions options_;
  bool is_text_ = false;  // the prompt
  std::string prompt_sha256_;
};

}  // namespace millrace::coordinator
