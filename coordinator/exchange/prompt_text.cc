// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/prompt_text.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "coordinator/http/disconnect_watch.h"
#include "coordinator/text/limits.h"
#include "tokenizer/text_messages.h"

namespace millrace::coordinator {

static_assert(kMaxTextBytes == tokenizer::kMaxTextBytes, "what is let in is what is tokenized");

std::optional<Refusal> PromptText::check(const PrefillBody& body) const {
  const std::string field(body.prompt_name);
  const auto* tokens = shared_.tokenizers.find(body.model);
  if (tokens == nullptr) {
    return Refusal(error(Errc::kInvalidArgument,
                         "'{}' is text, and this coordinator has no tokenizer of model '{}': it "
                         "needs the option --tokenizer {}=DIR; token ids need none",
                         field, body.model, body.model),
                   field);
  }
  if (body.is_chat && !tokens->renders_chats()) {
    return Refusal(Error(Errc::kInvalidArgument,
                         "this coordinator renders no chat templates: it needs the option "
                         "--tokenizer-chat; completions take text or token ids"),
                   field);
  }
  return std::nullopt;
}

// A tokenizer may have ids that its model has not, of images for example: only those of this
// prompt need to be the model's.
std::optional<Refusal> PromptText::check_ids(const PrefillBody& body) const {
  const auto offers = shared_.scheduler.offers();
  const auto offer = offers.find(body.model);
  if (offer == offers.end()) return std::nullopt;
  const int64_t vocabulary = offer->second.description.vocab_size();
  shared_.tokenizers.compare_vocabulary(body.model, vocabulary);
  const auto& ids = body.prompt_token_ids;
  const auto bad = std::ranges::find_if(ids, [=](int32_t id) { return id >= vocabulary; });
  if (bad == ids.end()) return std::nullopt;
  return Refusal(error(Errc::kInvalidArgument,
                       "token {} of the text is {}, of which model '{}' with a vocabulary of {} "
                       "knows nothing: the text has a token that only the tokenizer knows, or "
                       "--tokenizer names the folder of another model",
                       bad - ids.begin(), *bad, body.model, vocabulary),
                 std::string(body.prompt_name));
}

awaitable<std::optional<Refusal>> PromptText::tokenize(PrefillBody& body) {
  if (auto wrong = check(body)) co_return wrong;
  const TimePoint begin = Clock::steady().now();
  const uint64_t given_ms = body.options.deadline_ms();
  const Duration whole = given_ms > 0
                             ? Duration(std::chrono::milliseconds(static_cast<int64_t>(given_ms)))
                             : shared_.options.scheduler.default_deadline;
  const Duration patience = std::min(whole, shared_.tokenizers.timeout());
  auto ids = co_await ask(body, Deadline::at(begin + patience));
  const Duration took = Clock::steady().now() - begin;
  shared_.tokenizers.observe(body.model, took, ids.ok());
  const std::string field(body.prompt_name);
  if (!ids.ok()) {
    const Error& why = ids.error();
    // A tokenizer that is gone or too slow is not the client's mistake.
    const bool is_clients = why.code == Errc::kInvalidArgument || why.code == Errc::kTooLarge;
    co_return Refusal(error(why.code, "tokenizing: {}", why.message), is_clients ? field : "");
  }
  if (ids->empty()) {
    co_return Refusal(Error(Errc::kInvalidArgument, "the prompt is empty: its text has no tokens"),
                      field);
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(whole - took).count();
  if (left <= 0) {
    co_return Refusal(Error(Errc::kDeadlineExceeded, "the deadline passed while tokenizing"),
                      "deadline_ms");
  }
  body.options.set_deadline_ms(static_cast<uint64_t>(left));
  body.prompt_token_ids = *std::move(ids);
  body.text.reset();
  co_return check_ids(body);
}

awaitable<Result<std::vector<int32_t>>> PromptText::ask(PrefillBody& body, Deadline deadline) {
  Notifier changed(stream_.get_executor());
  const DisconnectWatch client(stream_, changed);
  std::string text = *std::exchange(body.text, std::string());
  tokenizer::Frame request =
      body.is_chat ? tokenizer::chat_request(std::move(text), body.add_special_tokens)
                   : tokenizer::encode_request(std::move(text), body.add_special_tokens);
  auto reply = co_await shared_.tokenizers.ask(body.model, std::move(request), deadline, changed,
                                               [&client] { return client.gone(); });
  if (!reply.ok()) co_return reply.error();
  const int64_t num_ids = shared_.tokenizers.find(body.model)->num_ids();
  // Optional, because asio needs a value to return if the work throws.
  using Ids = std::optional<Result<std::vector<int32_t>>>;
  auto work = [&reply, num_ids]() -> awaitable<Ids> {
    co_return tokenizer::encoded_ids(*reply, num_ids);
  };
  Ids ids = co_await asio::co_spawn(shared_.parsers, work(), asio::use_awaitable);
  co_return *std::move(ids);
}

}  // namespace millrace::coordinator
