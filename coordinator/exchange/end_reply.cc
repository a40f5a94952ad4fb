// SPDX-License-Identifier: Apache-2.0
#include "coordinator/exchange/end_reply.h"

#include <utility>

namespace millrace::coordinator {

awaitable<HttpReply> end_reply(PromptForm& form, const Request& record) {
  if (!record.failure) co_return co_await form.reply(record);
  if (auto declined = form.decline(record.id, *record.failure)) co_return *std::move(declined);
  co_return error_reply(*record.failure, record.id);
}

}  // namespace millrace::coordinator
