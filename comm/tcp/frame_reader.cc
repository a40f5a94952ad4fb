// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/frame_reader.h"

#include <utility>

namespace millrace::comm {

std::span<std::byte> FrameReader::room() {
  if (!frame_) return std::span(frame_bytes_).subspan(filled_);
  return std::as_writable_bytes(std::span(header_)).subspan(filled_ - kRequestFrameBytes);
}

Result<std::optional<FrameReader::Request>> FrameReader::took(size_t num_bytes) {
  filled_ += num_bytes;
  if (!frame_) {
    if (filled_ < kRequestFrameBytes) return std::optional<Request>();
    frame_ = read_request_frame(frame_bytes_);
    if (!frame_) return Error(Errc::kCorrupt, "what it sent is no request");
    header_.resize(frame_->header_bytes);
  }
  if (filled_ < kRequestFrameBytes + frame_->header_bytes) return std::optional<Request>();
  filled_ = 0;
  return std::optional<Request>(
      Request{.frame = *std::exchange(frame_, std::nullopt), .header = std::exchange(header_, {})});
}

}  // namespace millrace::comm
