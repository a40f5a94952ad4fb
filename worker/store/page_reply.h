// What a rank says of pages, or why it does not.
#pragma once

#include "common/result.h"
#include "kvstore/kv_store.h"
#include "protocol/kv_messages.pb.h"

namespace millrace::worker {

protocol::PageReply page_reply(const kvstore::PinnedPages& pinned);
protocol::PageReply error_reply(const Error& error);

}  // namespace millrace::worker
