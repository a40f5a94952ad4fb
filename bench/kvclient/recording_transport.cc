// SPDX-License-Identifier: Apache-2.0
#include "bench/kvclient/recording_transport.h"

#include "common/check.h"

namespace millrace::bench {

class RecordingTransport::Connection final : public comm::TransportConnection {
 public:
  Connection(RecordingTransport& transport, std::unique_ptr<comm::TransportConnection> inner)
      : transport_(transport), inner_(std::move(inner)) {}

  Result<Reply> call_into(std::string_view header, comm::Destination destination,
                          Deadline deadline) override {
    auto reply = inner_->call_into(header, destination, deadline);
    if (reply.ok() && reply->payload_bytes > 0) transport_.note(header);
    return reply;
  }
  void interrupt() override { inner_->interrupt(); }
  std::string transport_name() const override { return inner_->transport_name(); }
  comm::TransportStats stats() const override { return inner_->stats(); }

 private:
  RecordingTransport& transport_;
  std::unique_ptr<comm::TransportConnection> inner_;
};

Result<std::unique_ptr<comm::TransportConnection>> RecordingTransport::connect(
    const std::string& address, const std::string& capability, Deadline deadline) {
  MR_ASSIGN_OR_RETURN(auto connected, inner_.connect(address, capability, deadline));
  return std::unique_ptr<comm::TransportConnection>(
      std::make_unique<Connection>(*this, std::move(connected)));
}

void RecordingTransport::note(std::string_view header) {
  PageArrival arrival{.request = {}, .when = Clock::steady().now()};
  MR_CHECK(arrival.request.ParseFromArray(header.data(), static_cast<int>(header.size())),
           "not a page request");
  const std::lock_guard lock(mutex_);
  arrivals_.push_back(std::move(arrival));
}

std::vector<PageArrival> RecordingTransport::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(arrivals_, {});
}

}  // namespace millrace::bench
