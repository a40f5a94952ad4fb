// SPDX-License-Identifier: Apache-2.0
// A rank's answer to a page request: what it says of the pages, or the error.
#pragma once

#include "common/result.h"
#include "kvstore/kv_store.h"
#include "protocol/kv_messages.pb.h"

namespace millrace::worker {

protocol::PageReply page_reply(const kvstore::PinnedPages& pinned);
protocol::PageReply error_reply(const Error& error);

}  // namespace millrace::worker
