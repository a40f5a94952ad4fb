// POST /v1/completions: OpenAI's shape, answered with the first token and with what a decode engine
// finds the cache by. A stream is one event, and comes as a whole when the prefill is done: until
// then an error still has a status of its own.
#pragma once

#include <string>

#include "coordinator/api/parse_completion.h"
#include "coordinator/exchange/prompt_form.h"

namespace millrace::coordinator {

class CompletionForm : public PromptForm {
 public:
  explicit CompletionForm(const PrefillBodyLimits& limits) : limits_(limits) {}

  ParsedPrefillBody parse(const RequestReader::Request& request, const Route& route) override;
  awaitable<HttpReply> reply(const Request& record) override;

 private:
  const PrefillBodyLimits& limits_;
  CompletionOptions options_;
  std::string prompt_sha256_;
};

}  // namespace millrace::coordinator
