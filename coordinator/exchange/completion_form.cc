// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/completion_form.h"

#include <boost/asio/co_spawn.hpp>
#include <utility>

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
  const auto parse_body = route.endpoint == Endpoint::kChat       ? parse_chat
                          : route.endpoint == Endpoint::kGenerate ? parse_generate
                                                                  : parse_completion;
  ParsedCompletionBody parsed = parse_body(request.body(), shared_.options.body);
  if (auto* wrong = std::get_if<Refusal>(&parsed)) return std::move(*wrong);
  auto& body = std::get<CompletionBody>(parsed);
  options_ = body.options;
  is_text_ = body.prefill.text.has_value();
  model_ = body.prefill.model;
  return std::move(body.prefill);
}

void CompletionForm::see_prompt(const std::vector<int32_t>& token_ids) {
  prompt_.sha256 = prompt_digest(token_ids);
  num_tokens_ = std::ssize(token_ids);
  if (options_.return_token_ids.value_or(false)) prompt_.token_ids = token_ids;
  // vLLM takes the prompt of a chat from there; completions of text it tokenizes all the same.
  const bool is_chat = options_.shape == AnswerShape::kChat;
  if (options_.return_token_ids.value_or(is_chat)) prompt_.for_the_decoder = token_ids;
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
  co_return co_await write(record, words);
}

awaitable<HttpReply> CompletionForm::write(const Request& record, const CompletionWords& words) {
  auto work = [this, &record, &words]() -> awaitable<std::string> {
    co_return completion_text(record, options_, words, prompt_, unix_seconds());
  };
  const bool is_long = !prompt_.token_ids.empty() || !prompt_.for_the_decoder.empty();
  std::string body;
  if (is_long) {
    body = co_await asio::co_spawn(shared_.writers, work(), asio::use_awaitable);
  } else {
    body = completion_text(record, options_, words, prompt_, unix_seconds());
  }
  co_return with_type(std::move(body));
}

HttpReply CompletionForm::with_type(std::string body) const {
  HttpReply reply{200, std::move(body)};
  if (options_.stream) reply.content_type = "text/event-stream";
  return reply;
}

std::string CompletionForm::progress(const Request& record) const {
  if (!options_.return_progress) return {};
  return completion_progress(record, options_, unix_seconds(), Clock::steady().now());
}

std::optional<Duration> CompletionForm::decline_after() const {
  if (options_.decline_after_ms) return std::chrono::milliseconds(*options_.decline_after_ms);
  return shared_.options.decline_after;
}

std::optional<HttpReply> CompletionForm::decline(const std::string& request_id,
                                                 const Refusal& why) {
  const Errc code = why.error.code;
  // What an engine would refuse too, and what the client wanted.
  const bool is_clients = code == Errc::kInvalidArgument || code == Errc::kNotFound ||
                          code == Errc::kDenied || code == Errc::kCancelled;
  // Without a model the body could not be read, and what it asks for is not known.
  if (is_clients || model_.empty() || !decline_after()) return std::nullopt;
  shared_.metrics.declined(code);
  return with_type(
      declined_text(request_id, model_, num_tokens_, options_, why.error, unix_seconds()));
}

}  // namespace millrace::coordinator
