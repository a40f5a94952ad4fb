// SPDX-License-Identifier: Apache-2.0
#include "worker/store/page_reply.h"

#include "common/errc_wire.h"

namespace millrace::worker {

protocol::PageReply page_reply(const kvstore::PinnedPages& pinned) {
  protocol::PageReply reply;
  for (const auto& page : pinned.pages()) {
    auto& info = *reply.add_pages();
    info.set_checksum(page.checksum);
    info.set_score(page.score);
    info.set_tier(static_cast<uint32_t>(page.tier));
  }
  return reply;
}

protocol::PageReply error_reply(const Error& error) {
  protocol::PageReply reply;
  reply.mutable_error()->set_code(errc_to_wire(error.code));
  reply.mutable_error()->set_message(error.message);
  return reply;
}

}  // namespace millrace::worker
