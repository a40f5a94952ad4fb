// Puts together the requests of a connection from bytes as they come. Takes no memory for a request's
// header before its frame is found to be in order.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "comm/tcp/wire.h"
#include "common/result.h"

namespace millrace::comm {

class RequestReader {
 public:
  struct Request {
    RequestFrame frame;
    std::string header;
  };

  // Where the next bytes belong: never empty, and no further than the request goes.
  std::span<std::byte> room();
  // This many of them have come. Nothing as long as the request is not complete; kCorrupt if it is
  // none, and then for good.
  Result<std::optional<Request>> took(size_t num_bytes);

  // Whether part of a request has come.
  bool in_request() const { return filled_ > 0; }
  // That the reader holds for a request.
  size_t held_bytes() const { return header_.capacity(); }

 private:
  RequestFrameBytes frame_bytes_{};
  std::optional<RequestFrame> frame_;  // once it is complete
  std::string header_;
  size_t filled_ = 0;  // of frame and header
};

}  // namespace millrace::comm
