// SPDX-License-Identifier: Apache-2.0
// The client end: one endpoint with a worker of its own, driven by the calling thread. So the
// payload lands while call() runs and at no other time.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "comm/ucx/ucx_endpoint.h"
#include "comm/ucx/ucx_worker.h"

namespace millrace::comm {

class UcxConnection final : public TransportConnection {
 public:
  static Result<std::unique_ptr<UcxConnection>> open(std::shared_ptr<UcxContext> context,
                                                     const SocketAddress& address,
                                                     Deadline deadline);
  ~UcxConnection() override;

  Result<Reply> call_into(std::string_view request_header, Destination destination,
                          Deadline deadline) override;
  void interrupt() override;
  std::string transport_name() const override { return endpoint_->transport_name(); }
  TransportStats stats() const override { return stats_; }

 private:
  // The call under way. After an error it stays until the connection is destroyed.
  struct Call {
    uint64_t id = 0;
    std::vector<ucp_dt_iov_t> pieces;  // of the destination; UCX reads them while it receives
    int64_t destination_bytes = 0;
    std::optional<Reply> reply;
    int32_t reply_errc = 0;
    std::optional<int64_t> payload_bytes;  // as arrived
    std::optional<Error> failure;

    bool done() const;
  };

  UcxConnection(std::unique_ptr<UcxWorker> worker, const SocketAddress& address)
      : address_(address), worker_(std::move(worker)) {}
  Result<void> connect(Deadline deadline);
  // Puts the server's address in front of an error.
  Error failed(const Error& why) const;
  Result<Reply> exchange(std::string_view request_header, Deadline deadline);

  static ucs_status_t on_reply(void* self, const void* frame, size_t frame_bytes, void* text,
                               size_t text_bytes, const ucp_am_recv_param_t* params);
  static ucs_status_t on_payload(void* self, const void* frame, size_t frame_bytes, void* data,
                                 size_t num_bytes, const ucp_am_recv_param_t* params);
  static void on_received(void* request, ucs_status_t status, size_t num_bytes, void* self);
  ucs_status_t take_payload(void* data, size_t num_bytes, bool rendezvous);
  ucs_status_t receive(void* data, size_t num_bytes);

  const SocketAddress address_;
  Call call_;
  std::shared_ptr<int> num_sends_ = std::make_shared<int>(0);
  bool receiving_ = false;
  std::atomic<bool> interrupted_ = false;
  std::optional<Error> broken_;
  TransportStats stats_;
  // Last: until the worker is gone, UCX may call back.
  const std::unique_ptr<UcxWorker> worker_;
  std::unique_ptr<UcxEndpoint> endpoint_;
};

}  // namespace millrace::comm
