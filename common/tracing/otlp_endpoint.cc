// SPDX-License-Identifier: Apache-2.0
#include "common/tracing/otlp_endpoint.h"

#include <algorithm>

#include "common/quote.h"

namespace millrace::tracing {

namespace {

bool take_prefix(std::string_view prefix, std::string_view& text) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// A host without a port, or in brackets an IPv6 address without one.
bool has_no_port(std::string_view server) {
  return server.starts_with('[') ? server.ends_with(']')
                                 : server.find(':') == std::string_view::npos;
}

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace

Result<OtlpEndpoint> OtlpEndpoint::parse(std::string_view text) {
  OtlpEndpoint endpoint;
  std::string_view rest = text;
  endpoint.encrypted = take_prefix("https://", rest);
  const bool has_scheme = endpoint.encrypted || take_prefix("http://", rest);
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string server(rest.substr(0, slash));
  std::string_view path = rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (has_no_port(server)) server = fmt::format("{}:{}", server, endpoint.server.port);
  auto parsed = HostPort::parse(server);
  if (!has_scheme || !parsed.ok() || !is_printable(text) ||
      path.find_first_of("?#") != std::string_view::npos) {
    return error(Errc::kInvalidArgument, "{} is not http://HOST[:PORT] or https://HOST[:PORT]",
                 quote(text));
  }
  endpoint.server = *std::move(parsed);
  endpoint.target = std::string(path) + endpoint.target;
  return endpoint;
}

std::string OtlpEndpoint::to_string() const {
  return (encrypted ? "https://" : "http://") + server.to_string() + target;
}

}  // namespace millrace::tracing
