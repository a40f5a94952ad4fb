// SPDX-License-Identifier: Apache-2.0
#include "coordinator/text/request_id.h"

#include <algorithm>

#include "common/secret.h"

namespace millrace::coordinator {

namespace {

constexpr size_t kMaxRequestIdChars = 128;

bool is_id_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == ':' || c == '-';
}

}  // namespace

Result<void> check_request_id(std::string_view id) {
  if (id.empty() || id.size() > kMaxRequestIdChars ||
      !std::all_of(id.begin(), id.end(), is_id_char)) {
    return error(Errc::kInvalidArgument,
                 "a request id has 1 to {} letters, digits and '._:-'; got {} characters",
                 kMaxRequestIdChars, id.size());
  }
  return {};
}

std::string make_request_id() {
  return "req-" + random_id();
}

}  // namespace millrace::coordinator
