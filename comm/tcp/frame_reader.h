// SPDX-License-Identifier: Apache-2.0
// Assembles the requests of a connection from bytes as they arrive. Allocates no memory for a
// request's header before its frame is found valid.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "comm/tcp/wire.h"
#include "common/result.h"

namespace millrace::comm {

class FrameReader {
 public:
  struct Request {
    RequestFrame frame;
    std::string header;
  };

  // Where the next bytes belong: never empty, and never beyond the end of the request.
  std::span<std::byte> room();
  // `num_bytes` of them have arrived. Nothing until the request is complete; kCorrupt, from then on
  // always, if it is invalid.
  Result<std::optional<Request>> took(size_t num_bytes);

  // Whether part of a request has arrived.
  bool in_request() const { return filled_ > 0; }
  // Bytes that the reader holds for a request.
  size_t held_bytes() const { return header_.capacity(); }

 private:
  RequestFrameBytes frame_bytes_{};
  std::optional<RequestFrame> frame_;  // once it is complete
  std::string header_;
  size_t filled_ = 0;  // of frame and header
};

}  // namespace millrace::comm
