// SPDX-License-Identifier: Apache-2.0
// POST /v1/prefill/{id}/lease:renew and lease:release.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "coordinator/api/lease_body.h"
#include "coordinator/http/http_reply.h"
#include "coordinator/http/http_shared.h"
#include "coordinator/http/route.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

class LeaseExchange {
 public:
  explicit LeaseExchange(HttpShared& shared) : shared_(shared) {}

  // `request_id`: the id in an error's answer. All arguments must live until it is done.
  awaitable<HttpReply> run(const Route& route, const Caller& caller, const std::string& body,
                           const std::string& request_id);

 private:
  std::variant<LeaseBody, Refusal> parse(const Route& route, std::string_view body) const;
  // Waits for the group's answer.
  awaitable<Result<void>> renew(std::shared_ptr<const Request> record, const LeaseBody& body);

  HttpShared& shared_;
};

}  // namespace millrace::coordinator
