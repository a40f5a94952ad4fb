// SPDX-License-Identifier: Apache-2.0
// Frames of the control connection from a hostile peer: the header must never announce more than
// the limit, and whatever parses must survive being sent on.
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/check.h"
#include "protocol/codec.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (size < static_cast<size_t>(protocol::kFrameHeaderBytes)) return 0;
  const auto length = protocol::decode_frame_length(bytes.first<protocol::kFrameHeaderBytes>());
  MR_CHECK(!length.ok() || (*length >= 0 && *length <= protocol::kMaxFrameBytes), "length");
  const auto envelope = protocol::decode_frame_body(bytes.subspan(protocol::kFrameHeaderBytes));
  if (!envelope.ok()) return 0;
  const auto frame = protocol::encode_frame(*envelope);
  MR_CHECK(frame.ok(), "{}", frame.error().message);
  const auto sent = std::as_bytes(std::span(*frame));
  const auto again = protocol::decode_frame_body(sent.subspan(protocol::kFrameHeaderBytes));
  MR_CHECK(again.ok() && again->body_case() == envelope->body_case(), "round trip");
  return 0;
}
