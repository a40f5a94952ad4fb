// SPDX-License-Identifier: Apache-2.0
#include "common/result.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/log.h"

namespace millrace {

void check_failed(const char* condition, const std::string& message, std::source_location where) {
  log::flush();  // what came before
  std::fprintf(stderr, "%s:%u: check failed: %s: %s\n", where.file_name(), where.line(), condition,
               message.c_str());
  std::abort();
}

std::string_view errc_name(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
      return "invalid_argument";
    case Errc::kUnsupported:
      return "unsupported";
    case Errc::kNotFound:
      return "not_found";
    case Errc::kTooLarge:
      return "too_large";
    case Errc::kExhausted:
      return "exhausted";
    case Errc::kUnavailable:
      return "unavailable";
    case Errc::kDeadlineExceeded:
      return "deadline_exceeded";
    case Errc::kCancelled:
      return "cancelled";
    case Errc::kPeerLost:
      return "peer_lost";
    case Errc::kCorrupt:
      return "corrupt";
    case Errc::kIo:
      return "io";
    case Errc::kInternal:
      return "internal";
    case Errc::kDenied:
      return "denied";
  }
  return "internal";
}

std::string Error::to_string() const {
  const char* file = where.file_name();
  const char* slash = std::strrchr(file, '/');
  return fmt::format("{}: {} ({}:{})", errc_name(code), message, slash ? slash + 1 : file,
                     where.line());
}

}  // namespace millrace
