// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/comm/pattern_server.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace millrace::comm {

// A word at a time: a byte at a time is slow under sanitizers.
std::vector<std::byte> pattern_payload(int64_t num_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_bytes));
  uint64_t word = 1;
  for (size_t i = 0; i < bytes.size(); i += sizeof(word)) {
    word = word * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    std::memcpy(&bytes[i], &word, std::min(sizeof(word), bytes.size() - i));
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
