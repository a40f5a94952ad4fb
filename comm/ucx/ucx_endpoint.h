// Owner of a ucp_ep_h: one end of a connection. Its address is known to UCX, so it does not move.
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
  // If it is not closed yet, waits for that until close_deadline().
  ~UcxEndpoint();

  ucp_ep_h handle() const { return endpoint_; }
  // UCS_OK until the connection is lost.
  ucs_status_t status() const { return status_; }

  // Waits for the other side to have accepted and for what was sent to have left.
  Result<void> flush(Deadline deadline);
  // Gives up the connection: what is in flight ends with an error, and then nothing of it is
  // touched any more. closed() tells when, given progress.
  void start_close();
  bool closed();
  // 2 s after start_close(), for all that waits for it. Only once that was called.
  Deadline close_deadline() const { return *close_deadline_; }

  // "shm", "tcp" or, for other transports, UCX's name: what carries bulk data, once connected.
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
