// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/first_token.h"

#include <boost/asio/this_coro.hpp>

namespace millrace::coordinator {

bool has_tokenizer(const HttpShared& shared, const std::string& model) {
  return shared.tokenizers.find(model) != nullptr;
}

awaitable<Result<tokenizer::FollowingText>> read_first_token(HttpShared& shared,
                                                             const Request& record,
                                                             std::vector<int32_t> listed,
                                                             Duration patience) {
  Notifier changed(co_await asio::this_coro::executor);
  tokenizer::Frame request = tokenizer::following_request(
      record.prompt_end, {record.result->manifest().first_token_id()}, listed);
  const auto reply = co_await shared.tokenizers.ask(
      record.model, std::move(request), Deadline::after(patience), changed, [] { return false; },
      tokenizer::Turn::kNext);
  if (!reply.ok()) co_return reply.error();
  co_return tokenizer::following_text(*reply);
}

}  // namespace millrace::coordinator
