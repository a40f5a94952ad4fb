// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_transport.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "comm/api/destination_writer.h"
#include "comm/local/local_mailbox.h"

namespace millrace::comm {
namespace {

class LocalServer final : public TransportServer {
 public:
  LocalServer(std::string address, std::shared_ptr<LocalMailbox> mailbox, Handler handler)
      : address_(std::move(address)),
        mailbox_(std::move(mailbox)),
        handler_(std::move(handler)),
        thread_([this] { run(); }) {}
  ~LocalServer() override {
    mailbox_->close();
    thread_.join();
  }

  std::string address() const override { return address_; }
  TransportStats stats() const override {
    return {.requests = requests_.load(),
            .bytes_sent = bytes_sent_.load(),
            .bytes_received = bytes_received_.load(),
            .bytes_sent_over = {0, 0, bytes_sent_.load()}};
  }

 private:
  void run() {
    while (const auto letter = mailbox_->next()) {
      TransportReply reply = complete(handler_(letter->request));
      ++requests_;
      bytes_received_ += static_cast<int64_t>(letter->request.size());
      bytes_sent_ += static_cast<int64_t>(reply.header.size()) + reply.payload.total_bytes();
      mailbox_->answer(*letter, std::move(reply));
    }
  }

  const std::string address_;
  const std::shared_ptr<LocalMailbox> mailbox_;
  const Handler handler_;
  std::atomic<int64_t> requests_ = 0;
  std::atomic<int64_t> bytes_sent_ = 0;
  std::atomic<int64_t> bytes_received_ = 0;
  std::thread thread_;
};

class LocalConnection final : public TransportConnection {
 public:
  explicit LocalConnection(std::shared_ptr<LocalMailbox> mailbox) : mailbox_(std::move(mailbox)) {}

  Result<Reply> call_into(std::string_view request_header, Destination destination,
                          Deadline deadline) override {
    if (broken_) return *broken_;
    if (static_cast<int64_t>(request_header.size()) > kMaxTransportHeaderBytes) {
      return error(Errc::kTooLarge, "request header of {} bytes, limit {}", request_header.size(),
                   kMaxTransportHeaderBytes);
    }
    ++stats_.requests;
    stats_.bytes_sent += static_cast<int64_t>(request_header.size());
    auto reply = mailbox_->ask(std::string(request_header), deadline, interrupted_);
    if (!reply.ok()) {
      ++stats_.failures;
      broken_ = reply.error();
      return reply.error();
    }
    auto taken = take(*reply, destination);
    if (!taken.ok()) ++stats_.failures;
    return taken;
  }

  void interrupt() override {
    interrupted_ = true;
    mailbox_->wake();
  }

  std::string transport_name() const override { return "local"; }
  TransportStats stats() const override { return stats_; }

 private:
  Result<Reply> take(const TransportReply& reply, Destination destination) {
    const int64_t payload_bytes = reply.payload.total_bytes();
    if (static_cast<int64_t>(reply.header.size()) > kMaxTransportHeaderBytes ||
        payload_bytes > kMaxTransportPayloadBytes) {
      return error(Errc::kInternal, "reply of {} + {} bytes, limits {} + {}", reply.header.size(),
                   payload_bytes, kMaxTransportHeaderBytes, kMaxTransportPayloadBytes);
    }
    if (payload_bytes > total_bytes(destination)) {
      return error(Errc::kTooLarge, "payload of {} bytes, destination of {}", payload_bytes,
                   total_bytes(destination));
    }
    DestinationWriter to(destination);
    for (const auto piece : reply.payload.pieces) to.write(piece);
    stats_.bytes_received += static_cast<int64_t>(reply.header.size()) + payload_bytes;
    return Reply{reply.header, payload_bytes};
  }

  const std::shared_ptr<LocalMailbox> mailbox_;
  std::atomic<bool> interrupted_ = false;
  std::optional<Error> broken_;
  TransportStats stats_;
};

}  // namespace

Result<std::unique_ptr<TransportServer>> LocalTransport::listen(const std::string& host, int port,
                                                                TransportServer::Handler handler,
                                                                TransportServer::Admits) {
  auto mailbox = std::make_shared<LocalMailbox>();
  std::lock_guard lock(mutex_);
  const auto address = fmt::format("{}:{}", host, port == 0 ? next_port_++ : port);
  // Connections keep the mailbox of a server alive that is gone.
  const auto taken = mailboxes_[address].lock();
  if (taken != nullptr && !taken->closed()) {
    return error(Errc::kInvalidArgument, "address {} is already in use", address);
  }
  mailboxes_[address] = mailbox;
  return std::unique_ptr<TransportServer>(
      std::make_unique<LocalServer>(address, std::move(mailbox), std::move(handler)));
}

Result<std::unique_ptr<TransportConnection>> LocalTransport::connect(const std::string& address,
                                                                     const std::string&, Deadline) {
  std::lock_guard lock(mutex_);
  auto mailbox = mailboxes_[address].lock();
  if (!mailbox) return error(Errc::kPeerLost, "nobody listens on {}", address);
  return std::unique_ptr<TransportConnection>(
      std::make_unique<LocalConnection>(std::move(mailbox)));
}

}  // namespace millrace::comm
