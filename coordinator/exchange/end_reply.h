// SPDX-License-Identifier: Apache-2.0
// The answer to a prompt whose request has ended: its result, its error, or that it was declined.
#pragma once

#include "coordinator/exchange/prompt_form.h"

namespace millrace::coordinator {

awaitable<HttpReply> end_reply(PromptForm& form, const Request& record);

}  // namespace millrace::coordinator
