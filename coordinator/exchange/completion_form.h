// POST /v1/completions and POST /v1/chat/completions: OpenAI's shapes, answered with the first token
// and with what a decode engine finds the cache by. A stream is one event, and comes as a whole when
// the prefill is done: until then an error still has a status of its own.
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
