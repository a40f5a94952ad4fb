// SPDX-License-Identifier: Apache-2.0
// GET and DELETE /v1/prefill/{id}: the status of a request, after cancelling it for DELETE.
#pragma once

#include <string>

#include "coordinator/exchange/manifest_writer.h"
#include "coordinator/http/http_reply.h"
#include "coordinator/http/route.h"

namespace millrace::coordinator {

class StatusExchange {
 public:
  explicit StatusExchange(HttpShared& shared) : shared_(shared), manifests_(shared) {}

  // `request_id`: the id in an error's answer. All arguments must live until it is done.
  awaitable<HttpReply> run(const Route& route, const Caller& caller, const std::string& request_id);

 private:
  HttpShared& shared_;
  ManifestWriter manifests_;
};

}  // namespace millrace::coordinator
