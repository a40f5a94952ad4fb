// SPDX-License-Identifier: Apache-2.0
// The prefix of a transport's address that names the transport: tcp://10.0.0.7:9000.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::comm {

inline constexpr std::string_view kTcpScheme = "tcp";  // comm/tcp
inline constexpr std::string_view kTlsScheme = "tls";  // comm/tcp, encrypted
inline constexpr std::string_view kUcxScheme = "ucx";  // comm/ucx

struct SchemedAddress {
  std::string scheme;
  std::string where;  // "host:port"
};

std::string with_scheme(std::string_view scheme, std::string_view where);

// kInvalidArgument for text without a scheme.
Result<SchemedAddress> split_scheme(const std::string& address);

// The part after the scheme, which must be this one.
Result<std::string> without_scheme(const std::string& address, std::string_view scheme);

}  // namespace millrace::comm
