#include "tests/unit/comm/pattern_server.h"

#include <algorithm>
#include <cstdio>

namespace millrace::comm {

std::vector<std::byte> pattern_payload(int64_t num_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + (i >> 8) * 13 + (i >> 16)) & 0xff);
  }
  return bytes;
}

TransportReply answer_with_pattern(std::string_view request) {
  TransportReply reply{.header = "reply to " + std::string(request), .payload = {}};
  long long num_bytes = 0;
  int num_pieces = 0;
  if (std::sscanf(std::string(request).c_str(), "pattern %lld %d", &num_bytes, &num_pieces) != 2) {
    return reply;
  }
  const auto data = std::make_shared<std::vector<std::byte>>(pattern_payload(num_bytes));
  reply.payload.keep_alive = data;
  // Unequal pieces: the first ones take a little more, an empty one ends them.
  std::span<const std::byte> rest = *data;
  for (int left = num_pieces; left > 0; --left) {
    const size_t even = (rest.size() + static_cast<size_t>(left) - 1) / static_cast<size_t>(left);
    const size_t size = left == 1 ? rest.size() : std::min(rest.size(), even + even % 5);
    reply.payload.pieces.push_back(rest.first(size));
    rest = rest.subspan(size);
  }
  reply.payload.pieces.push_back({});
  return reply;
}

}  // namespace millrace::comm
