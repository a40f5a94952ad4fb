// SPDX-License-Identifier: Apache-2.0
#include "protocol/errc.h"

namespace millrace::protocol {

int http_status(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
      return 400;
    case Errc::kDenied:
      return 403;
    case Errc::kNotFound:
      return 404;
    case Errc::kTooLarge:
      return 413;
    case Errc::kExhausted:
      return 429;
    case Errc::kCancelled:
      return 499;  // nginx's "client closed request", as vLLM reports it
    case Errc::kUnsupported:
      return 501;
    case Errc::kUnavailable:
    case Errc::kPeerLost:
      return 503;
    case Errc::kDeadlineExceeded:
      return 504;
    case Errc::kCorrupt:
    case Errc::kIo:
    case Errc::kInternal:
      return 500;
  }
  return 500;
}

bool retriable(Errc code) {
  return code == Errc::kExhausted || code == Errc::kUnavailable || code == Errc::kPeerLost;
}

}  // namespace millrace::protocol
