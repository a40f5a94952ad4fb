// SPDX-License-Identifier: Apache-2.0
#include "comm/net/reply_maker.h"

#include <exception>

#include "common/errc_wire.h"
#include "common/log.h"

namespace millrace::comm {

Error ReplyMaker::refusal(int32_t errc, int64_t payload_bytes, int64_t destination_bytes) {
  const Errc code = errc_from_wire(errc);
  if (code != Errc::kTooLarge) return Error(code, "the server could not make the reply");
  return error(code,
               "the server refused: the payload of {} bytes does not fit the destination of {}",
               payload_bytes, destination_bytes);
}

ReplyMaker::Reply ReplyMaker::call(const Make& make, int64_t destination_bytes) noexcept {
  const auto log_thrown = [this](const char* what) {
    if (const auto times = thrown_line_.due()) {
      log::error("KV server {}: a reply cannot be made: {}{}", name_, what,
                 PacedLine::others(*times));
    }
  };
  try {
    TransportReply content = make();
    if (content.later) return {.content = std::move(content)};
    const int64_t payload_bytes = content.payload.total_bytes();
    if (static_cast<int64_t>(content.header.size()) > kMaxTransportHeaderBytes ||
        payload_bytes > kMaxTransportPayloadBytes) {
      if (const auto times = large_line_.due()) {
        log::error("KV server {}: reply of {} + {} bytes, limits {} + {}{}", name_,
                   content.header.size(), payload_bytes, kMaxTransportHeaderBytes,
                   kMaxTransportPayloadBytes, PacedLine::others(*times));
      }
      return refused(Errc::kInternal, payload_bytes);
    }
    if (payload_bytes > destination_bytes) return refused(Errc::kTooLarge, payload_bytes);
    return {.payload_bytes = payload_bytes, .content = std::move(content)};
  } catch (const std::exception& why) {
    log_thrown(why.what());
  } catch (...) {
    log_thrown("an exception of an unknown type");
  }
  return refused(Errc::kInternal, 0);
}

ReplyMaker::Reply ReplyMaker::refused(Errc code, int64_t payload_bytes) noexcept {
  ++failures_;
  return {.errc = errc_to_wire(code), .payload_bytes = payload_bytes, .content = {}};
}

}  // namespace millrace::comm
