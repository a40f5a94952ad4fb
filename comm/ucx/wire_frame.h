// SPDX-License-Identifier: Apache-2.0
// What travels in the header of each active message. All fields are little-endian and fixed. Both
// ends run the same version; a frame of another is refused.
//
//   client                                server
//   kRequestMessage: RequestFrame, text   ->
//                                         <- kReplyMessage: ReplyFrame, text
//                                         <- kPayloadMessage: PayloadFrame, payload (if any)
//
// The payload may overtake its reply.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

namespace millrace::comm {

inline constexpr unsigned kRequestMessage = 1;
inline constexpr unsigned kReplyMessage = 2;
inline constexpr unsigned kPayloadMessage = 3;

inline constexpr uint32_t kWireVersion = 0x4d520001;  // "MR", 1

struct RequestFrame {
  uint32_t version = kWireVersion;
  uint32_t reserved = 0;
  uint64_t call = 0;
  int64_t destination_bytes = 0;  // the most that the client can take
};

struct ReplyFrame {
  uint32_t version = kWireVersion;
  int32_t errc = 0;  // 0 or an Errc; then there is no payload message
  uint64_t call = 0;
  int64_t payload_bytes = 0;
};

struct PayloadFrame {
  uint32_t version = kWireVersion;
  uint32_t reserved = 0;
  uint64_t call = 0;
};

// Nothing if the bytes are not a frame of this kind and version.
template <typename Frame>
std::optional<Frame> read_frame(const void* header, size_t num_bytes) {
  if (header == nullptr || num_bytes != sizeof(Frame)) return std::nullopt;
  Frame frame;
  std::memcpy(&frame, header, sizeof(Frame));
  if (frame.version != kWireVersion) return std::nullopt;
  return frame;
}

}  // namespace millrace::comm
