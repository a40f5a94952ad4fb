// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions and POST /v1/chat/completions: OpenAI's shapes; POST /inference/v1/generate:
// vLLM's. The answer holds the first token and what a decode engine needs to find the cache, or the
// word that there is none.
#pragma once

#include <string>

#include "coordinator/api/completion_json.h"
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
  bool answers_in_events() const override { return options_.stream; }
  std::string progress(const Request& record) const override;
  std::optional<Duration> decline_after() const override;
  std::optional<HttpReply> decline(const std::string& request_id, const Refusal& why) override;

 private:
  awaitable<HttpReply> write(const Request& record, const CompletionWords& words);
  HttpReply with_type(std::string body) const;

  HttpShared& shared_;
  CompletionOptions options_;
  bool is_text_ = false;  // the prompt
  std::string model_;
  int64_t num_tokens_ = 0;
  AnsweredPrompt prompt_;
};

}  // namespace millrace::coordinator
