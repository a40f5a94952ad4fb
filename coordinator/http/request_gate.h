// SPDX-License-Identifier: Apache-2.0
// What the requests of one connection may ask for and send: which endpoints, with which token, how
// large a body, and how much of the memory for bodies. Pure: the connection reads, the gate
// decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/access/token_table.h"
#include "coordinator/api/api_error.h"
#include "coordinator/http/body_budget.h"
#include "coordinator/http/connection_table.h"
#include "coordinator/http/route.h"
#include "coordinator/http/server_options.h"
#include "coordinator/requests/refusal.h"

namespace millrace::coordinator {

class RequestGate {
 public:
  // `client`: the client whose share of `bodies` is used. `tokens` may change between requests.
  RequestGate(const HttpLimits& limits, const TokenTable& tokens,
              ConnectionTable::Admission admission, BodyBudget& bodies, std::string client);

  // Refuses what can be refused before the body is read. Reserves the memory that the header
  // announces. `authorization`: that field of the header; "" if there is none.
  std::optional<ApiError> check(const Route& route, std::string_view authorization,
                                uint64_t announced_bytes);
  // The sender of the request that was let in last.
  const Caller& caller() const { return caller_; }
  // Reserves memory for a body that turns out to be larger than announced.
  std::optional<Refusal> hold(const Route& route, uint64_t bytes);
  // The body is gone: gives its memory back.
  void release() { share_.give_back(); }

  uint64_t max_body_bytes(const Route& route) const;
  // The connection gets one answer, to a health probe; every other request is refused.
  bool only_health_probes() const { return admission_.only_health_probes.has_value(); }

 private:
  bool is_health_probe(const Route& route) const;
  std::optional<ApiError> identify(const Route& route, std::string_view authorization);
  Caller viewer(std::string_view authorization) const;

  const HttpLimits& limits_;
  const TokenTable& tokens_;
  const ConnectionTable::Admission admission_;
  BodyBudget::Share share_;
  Caller caller_;
};

}  // namespace millrace::coordinator
