// SPDX-License-Identifier: Apache-2.0
#include "protocol/codec.h"

#include <cstring>
#include <string_view>

namespace millrace::protocol {

Result<std::string> encode_frame(const Envelope& envelope) {
  const auto bytes = static_cast<int64_t>(envelope.ByteSizeLong());
  if (bytes > kMaxFrameBytes) {
    return error(Errc::kTooLarge, "control message of {} bytes, limit {}", bytes, kMaxFrameBytes);
  }
  std::string frame(static_cast<size_t>(kFrameHeaderBytes + bytes), '\0');
  for (int i = 0; i < kFrameHeaderBytes; ++i) {
    frame[static_cast<size_t>(i)] = static_cast<char>((bytes >> (8 * i)) & 0xff);
  }
  MR_CHECK(envelope.SerializeToArray(frame.data() + kFrameHeaderBytes, static_cast<int>(bytes)),
           "serialising {} bytes", bytes);
  return frame;
}

namespace {

// The beginnings of HTTP messages, in either direction. Read as a length, each is above the limit.
bool speaks_http(std::span<const std::byte, kFrameHeaderBytes> header) {
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  return text == "HTTP" || text == "GET " || text == "HEAD" || text == "POST" || text == "DELE";
}

}  // namespace

Result<int64_t> decode_frame_length(std::span<const std::byte, kFrameHeaderBytes> header) {
  int64_t bytes = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    bytes |= int64_t{std::to_integer<uint8_t>(header[i])} << (8 * i);
  }
  if (bytes > kMaxFrameBytes && speaks_http(header)) {
    return error(Errc::kInvalidArgument,
                 "the peer speaks HTTP: clients use the coordinator's --http-port, groups its "
                 "--group-port");
  }
  if (bytes > kMaxFrameBytes) {
    return error(Errc::kTooLarge, "announced frame of {} bytes, limit {}", bytes, kMaxFrameBytes);
  }
  return bytes;
}

Result<Envelope> decode_frame_body(std::span<const std::byte> body) {
  Envelope envelope;
  if (!envelope.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return error(Errc::kInvalidArgument, "frame of {} bytes is not a control message", body.size());
  }
  return envelope;
}

}  // namespace millrace::protocol
