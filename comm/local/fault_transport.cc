// SPDX-License-Identifier: Apache-2.0
#include "comm/local/fault_transport.h"

#include <optional>
#include <utility>

namespace millrace::comm {
namespace {

class FaultConnection final : public TransportConnection {
 public:
  FaultConnection(std::unique_ptr<TransportConnection> inner, FaultPolicy policy,
                  std::shared_ptr<std::atomic<int64_t>> num_calls)
      : inner_(std::move(inner)), policy_(std::move(policy)), num_calls_(std::move(num_calls)) {}

  Result<Reply> call_into(std::string_view request_header, Destination destination,
                          Deadline deadline) override {
    if (broken_) return *broken_;
    const int64_t number = num_calls_->fetch_add(1);
    const Fault* const fault = find_fault(number);
    if (fault == nullptr) return inner_->call_into(request_header, destination, deadline);
    switch (fault->kind) {
      case FaultKind::kDropRequest:
        return fail(error(Errc::kDeadlineExceeded, "fault: request of call {} dropped", number));
      case FaultKind::kLosePeer:
        return fail(error(Errc::kPeerLost, "fault: peer lost in call {}", number));
      case FaultKind::kDropReply:
        (void)inner_->call_into(request_header, destination, deadline);
        return fail(error(Errc::kDeadlineExceeded, "fault: reply of call {} dropped", number));
      case FaultKind::kFlipByte:
        break;
    }
    auto reply = inner_->call_into(request_header, destination, deadline);
    if (reply.ok() && reply->payload_bytes > 0) {
      flip(destination, fault->byte % reply->payload_bytes);
    }
    return reply;
  }

  void interrupt() override { inner_->interrupt(); }

  std::string transport_name() const override { return inner_->transport_name(); }
  TransportStats stats() const override { return inner_->stats(); }

 private:
  static void flip(Destination destination, int64_t byte) {
    for (const auto piece : destination) {
      const auto size = static_cast<int64_t>(piece.size());
      if (byte < size) {
        piece[static_cast<size_t>(byte)] ^= std::byte{0x10};
        return;
      }
      byte -= size;
    }
  }
  const Fault* find_fault(int64_t number) const {
    for (const Fault& fault : policy_.faults) {
      if (number >= fault.first_call && number < fault.first_call + fault.num_calls) return &fault;
    }
    return nullptr;
  }
  Error fail(Error error) {
    broken_ = std::move(error);
    return *broken_;
  }

  const std::unique_ptr<TransportConnection> inner_;
  const FaultPolicy policy_;
  const std::shared_ptr<std::atomic<int64_t>> num_calls_;
  std::optional<Error> broken_;
};

}  // namespace

FaultTransport::FaultTransport(Transport& inner, FaultPolicy policy)
    : inner_(inner),
      policy_(std::move(policy)),
      num_calls_(std::make_shared<std::atomic<int64_t>>(0)) {}

Result<std::unique_ptr<TransportServer>> FaultTransport::listen(const std::string& host, int port,
                                                                TransportServer::Handler handler,
                                                                TransportServer::Admits admits) {
  return inner_.listen(host, port, std::move(handler), std::move(admits));
}

Result<std::unique_ptr<TransportConnection>> FaultTransport::connect(const std::string& address,
                                                                     const std::string& capability,
                                                                     Deadline deadline) {
  MR_ASSIGN_OR_RETURN(auto connection, inner_.connect(address, capability, deadline));
  return std::unique_ptr<TransportConnection>(
      std::make_unique<FaultConnection>(std::move(connection), policy_, num_calls_));
}

}  // namespace millrace::comm
