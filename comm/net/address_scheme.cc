// SPDX-License-Identifier: Apache-2.0
#include "comm/net/address_scheme.h"

namespace millrace::comm {

namespace {

constexpr std::string_view kMark = "://";

}  // namespace

std::string with_scheme(std::string_view scheme, std::string_view where) {
  return fmt::format("{}{}{}", scheme, kMark, where);
}

Result<SchemedAddress> split_scheme(const std::string& address) {
  const size_t mark = address.find(kMark);
  if (mark == std::string::npos || mark == 0) {
    return error(Errc::kInvalidArgument,
                 "address \"{}\" does not say what speaks there; expected tcp://host:port",
                 address);
  }
  return SchemedAddress{.scheme = address.substr(0, mark),
                        .where = address.substr(mark + kMark.size())};
}

Result<std::string> without_scheme(const std::string& address, std::string_view scheme) {
  MR_ASSIGN_OR_RETURN(auto split, split_scheme(address));
  if (split.scheme == scheme) return std::move(split.where);
  return error(Errc::kUnsupported, "address \"{}\" is not for {}://", address, scheme);
}

}  // namespace millrace::comm
