// SPDX-License-Identifier: Apache-2.0
// The address of a coordinator, as people write it. Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::client {

struct ServerAddress {
  // HOST[:PORT], http://HOST[:PORT] or https://HOST[:PORT]; an IPv6 address stands in brackets.
  static Result<ServerAddress> parse(std::string_view text);

  // As it stands in a URL and in messages.
  std::string to_string() const;

  std::string host;  // name or address, without brackets
  std::string port = "8000";
  bool encrypted = false;
};

}  // namespace millrace::client
