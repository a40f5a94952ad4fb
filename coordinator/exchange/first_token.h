// SPDX-License-Identifier: Apache-2.0
// The first token after a prompt as text.
#pragma once

#include <string>
#include <vector>

#include "coordinator/http/http_shared.h"
#include "coordinator/net/awaitable.h"
#include "coordinator/requests/request.h"
#include "tokenizer/text_messages.h"

namespace millrace::coordinator {

// Whether the model has a tokenizer.
bool has_tokenizer(const HttpShared& shared, const std::string& model);

// The first token of a request that is done and whose model has a tokenizer. `listed`: other tokens
// to name as well.
awaitable<Result<tokenizer::FollowingText>> read_first_token(HttpShared& shared,
                                                             const Request& record,
                                                             std::vector<int32_t> listed,
                                                             Duration patience);

}  // namespace millrace::coordinator
