// SPDX-License-Identifier: Apache-2.0
// Owner of a ucp_ep_h: one end of a connection. UCX knows this object's address, so it does not
// move.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <optional>
#include <string>

#include "comm/net/socket_address.h"
#include "comm/ucx/ucx_worker.h"
#include "common/result.h"

namespace millrace::comm {

class UcxEndpoint {
 public:
  static Result<std::unique_ptr<UcxEndpoint>> connect(UcxWorker& worker,
                                                      const SocketAddress& address);
  static Result<std::unique_ptr<UcxEndpoint>> accept(UcxWorker& worker, ucp_conn_request_h request);
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;
  // If it is not closed yet, waits until it is, at most until close_deadline().
  ~UcxEndpoint();

  ucp_ep_h handle() const { return endpoint_; }
  // UCS_OK until the connection is lost.
  ucs_status_t status() const { return status_; }

  // Waits until the other side has accepted and everything sent has left.
  Result<void> flush(Deadline deadline);
  // Gives up the connection: whatever is in flight ends with an error, and is not touched after
  // that. closed() tells when, if the worker is progressed.
  void start_close();
  bool closed();
  // 2 s after start_close(), for everything that waits for the close. Only after start_close().
  Deadline close_deadline() const { return *close_deadline_; }

  // What carries bulk data, once connected: "shm", "tcp" or, for other transports, UCX's name.
  std::string transport_name() const;

 private:
  explicit UcxEndpoint(UcxWorker& worker) : worker_(worker) {}
  Result<void> create(ucp_ep_params_t params, std::string_view doing);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);

  UcxWorker& worker_;
  ucp_ep_h endpoint_ = nullptr;
  ucs_status_t status_ = UCS_OK;
  ucs_status_ptr_t closing_ = nullptr;
  std::optional<Deadline> close_deadline_;
};

}  // namespace millrace::comm
