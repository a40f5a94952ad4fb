// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/completion_form.h"

#include "coordinator/api/completion_json.h"
#include "coordinator/exchange/first_token.h"
#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

namespace {

// A client that sends token ids reads the token ids of the answer and does not depend on a
// tokenizer.
constexpr std::chrono::seconds kIdsPatience{2};

}  // namespace

ParsedPrefillBody CompletionForm::parse(const RequestReader::Request& request, const Route& route) {
  if (auto wrong = refuse_query(route.query)) return *std::move(wrong);
  const auto parse_body = route.endpoint == Endpoint::kChat ? parse_chat : parse_completion;
  ParsedCompletionBody parsed = parse_body(request.body(), shared_.options.body);
  if (auto* wrong = std::get_if<Refusal>(&parsed)) return std::move(*wrong);
  auto& body = std::get<CompletionBody>(parsed);
  options_ = body.options;
  is_text_ = body.prefill.text.has_value();
  return std::move(body.prefill);
}

void CompletionForm::see_prompt(const std::vector<int32_t>& token_ids) {
  prompt_sha256_ = prompt_digest(token_ids);
}

awaitable<HttpReply> CompletionForm::reply(const Request& record) {
  const std::vector<int32_t> listed = listed_tokens(record, options_);
  CompletionWords words;
  if (has_tokenizer(shared_, record.model)) {
    const Duration patience = is_text_ ? shared_.tokenizers.timeout() : Duration(kIdsPatience);
    auto read = co_await read_first_token(shared_, record, listed, patience);
    // For a client that sent text, an answer without text would be wrong.
    if (!read.ok() && is_text_) {
      co_return error_reply(
          error(read.error().code, "the prompt is done, but its first token could not be read: {}",
                read.error().message),
          record.id);
    }
    if (read.ok()) words = {.text = std::move(read->text), .tokens = std::move(read->names)};
  }
  HttpReply reply{200, completion_text(record, options_, words, prompt_sha256_, unix_seconds())};
  if (options_.stream) reply.content_type = "text/event-stream";
  co_return reply;
}

}  // namespace millrace::coordinator
