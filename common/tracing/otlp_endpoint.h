// SPDX-License-Identifier: Apache-2.0
// Where spans go: http://HOST[:PORT][/PATH] or https://..., to which OTLP adds /v1/traces. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/host_port.h"
#include "common/result.h"

namespace millrace::tracing {

struct OtlpEndpoint {
  // kInvalidArgument.
  static Result<OtlpEndpoint> parse(std::string_view text);
  // As it stands in messages.
  std::string to_string() const;

  HostPort server{.host = "", .port = 4318};
  std::string target = "/v1/traces";
  bool encrypted = false;
};

}  // namespace millrace::tracing
