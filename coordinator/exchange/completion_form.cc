#include "coordinator/exchange/completion_form.h"

#include "coordinator/api/completion_json.h"
#include "coordinator/text/unix_time.h"

namespace millrace::coordinator {

ParsedPrefillBody CompletionForm::parse(const RequestReader::Request& request, const Route& route) {
  if (auto wrong = refuse_query(route.query)) return *std::move(wrong);
  ParsedCompletionBody parsed = parse_completion(request.body(), limits_);
  if (auto* wrong = std::get_if<Refusal>(&parsed)) return std::move(*wrong);
  auto& body = std::get<CompletionBody>(parsed);
  options_ = body.options;
  prompt_sha256_ = prompt_digest(body.prefill.prompt_token_ids);
  return std::move(body.prefill);
}

awaitable<HttpReply> CompletionForm::reply(const Request& record) {
  HttpReply reply{200, completion_text(record, options_, prompt_sha256_, unix_seconds())};
  if (options_.stream) reply.content_type = "text/event-stream";
  co_return reply;
}

}  // namespace millrace::coordinator
