// SPDX-License-Identifier: Apache-2.0
// A host and a port as people write them, the one form of them in options, addresses and messages:
// HOST:PORT, and [ADDRESS]:PORT for an IPv6 address, whose colons would be mistaken for the one in
// front of the port. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace {

struct HostPort {
  // Brackets are taken off. An IPv6 address without them is understood too: its last colon is in
  // front of the port. kInvalidArgument.
  static Result<HostPort> parse(std::string_view text);
  std::string to_string() const;

  std::string host;  // a name or an address, without brackets
  uint16_t port = 0;
};

// "::1" for "[::1]"; any other text as it is.
std::string without_brackets(std::string_view host);

}  // namespace millrace
