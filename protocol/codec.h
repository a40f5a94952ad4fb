// SPDX-License-Identifier: Apache-2.0
// Framing of control messages: 4 bytes of little-endian length, then a serialised Envelope. Pure:
// no sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/result.h"
#include "protocol/control_messages.pb.h"

namespace millrace::protocol {

inline constexpr uint32_t kProtocolVersion = 3;
inline constexpr int64_t kFrameHeaderBytes = 4;
// A prompt of 4M tokens is 16 MiB; nothing else comes near.
inline constexpr int64_t kMaxFrameBytes = 64ll << 20;

// kTooLarge when the message does not fit a frame.
Result<std::string> encode_frame(const Envelope& envelope);

// Length of the body that follows a frame header. kTooLarge above kMaxFrameBytes, before any memory
// is taken; kInvalidArgument if the bytes are HTTP.
Result<int64_t> decode_frame_length(std::span<const std::byte, kFrameHeaderBytes> header);
Result<Envelope> decode_frame_body(std::span<const std::byte> body);

}  // namespace millrace::protocol
