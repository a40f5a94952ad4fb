// SPDX-License-Identifier: Apache-2.0
// The server side of the transport tests. Answers "pattern <bytes> <pieces>" with a payload of that
// size and of known content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/api/transport.h"

namespace millrace::comm {

std::vector<std::byte> pattern_payload(int64_t num_bytes);

inline std::string pattern_request(int64_t num_bytes, int num_pieces) {
  return "pattern " + std::to_string(num_bytes) + " " + std::to_string(num_pieces);
}

// The reply's header is "reply to <request>". Any other request gets no payload.
TransportReply answer_with_pattern(std::string_view request);

}  // namespace millrace::comm
