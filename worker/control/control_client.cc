// SPDX-License-Identifier: Apache-2.0
#include "worker/control/control_client.h"

#include <array>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>

#include "common/errc_wire.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/net/net_stream.h"
#include "common/net/tls_source.h"
#include "protocol/attended_time.h"
#include "protocol/codec.h"
#include "worker/control/control_inbox.h"

namespace millrace::worker {

namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using Kind = ControlEvent::Kind;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// Progress messages are small; this much unsent means that the coordinator does not read.
constexpr int64_t kMaxUnsentBytes = 64 << 20;
// Time for the last messages: a coordinator that reads takes them in a millisecond.
constexpr auto kLastWords = std::chrono::milliseconds(200);

}  // namespace

class ControlClient::Connection {
 public:
  Connection(ControlOptions options, ControlBoard& board)
      : options_(std::move(options)), board_(board) {
    asio::co_spawn(io_, keep_connected(), asio::detached);
    thread_ = std::thread([this] { io_.run(); });
  }

  ~Connection() {
    // The last messages, such as why a group ends, still go out.
    const auto patience = Deadline::after(kLastWords);
    while (unsent_bytes_ > 0 && inbox.connected() && !patience.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    asio::post(io_, [this] {
      stopping_ = true;
      retry_.cancel();
      drop("closed by this side");
    });
    thread_.join();
  }

  Result<void> send(const protocol::Envelope& envelope) {
    if (!inbox.connected()) return Error(Errc::kPeerLost, "not connected to the coordinator");
    if (envelope.has_cached_prefixes() && !takes_prefixes_) return {};  // an older coordinator
    MR_ASSIGN_OR_RETURN(std::string frame, protocol::encode_frame(envelope));
    if (unsent_bytes_ > kMaxUnsentBytes) {
      return error(Errc::kExhausted, "the coordinator does not read: {} bytes are waiting",
                   unsent_bytes_.load());
    }
    unsent_bytes_ += static_cast<int64_t>(frame.size());
    asio::post(io_, [this, session = session_.load(), sent = std::move(frame)]() mutable {
      if (session == session_) {
        enqueue(std::move(sent));
      } else {
        unsent_bytes_ -= static_cast<int64_t>(sent.size());
      }
    });
    return {};
  }

  ControlInbox inbox;

 private:
  awaitable<void> keep_connected();
  awaitable<Result<void>> open();
  awaitable<Result<void>> connect(NetStream& stream);
  awaitable<Result<void>> report_leases();
  std::string cached_prefixes() const;
  awaitable<Result<protocol::Envelope>> read();
  awaitable<void> serve();
  awaitable<void> beat(uint64_t session);
  awaitable<void> write_outbox();
  void enqueue(std::string frame);
  void drop(const std::string& why);

  const ControlOptions options_;
  TlsSource tls_{options_.tls, TlsSource::Side::kClient};
  ControlBoard& board_;
  asio::io_context io_{1};
  // Coroutines that use a connection share it, so the next connection need not wait until they
  // notice that this one has ended.
  std::shared_ptr<NetStream> stream_;
  tcp::resolver resolver_{io_};
  asio::steady_timer retry_{io_};
  asio::steady_timer heartbeat_{io_};
  bool stopping_ = false;
  bool refused_ = false;
  std::string dropped_because_;
  Duration interval_{};
  Duration patience_{};
  std::atomic<bool> takes_prefixes_{false};  // whether the coordinator does
  std::optional<protocol::AttendedTime> attended_;
  Duration last_message_{};  // by attended_
  std::deque<std::string> outbox_;
  bool writing_ = false;
  std::atomic<int64_t> unsent_bytes_{0};
  std::atomic<uint64_t> session_{0};  // counts connections; each message belongs to one
  std::thread thread_;
};

awaitable<void> ControlClient::Connection::keep_connected() {
  Duration pause = options_.first_retry;
  while (!stopping_ && !refused_) {
    const Result<void> opened = co_await open();
    if (opened.ok()) {
      pause = options_.first_retry;
      inbox.push({.kind = Kind::kConnected});
      co_await serve();
      inbox.push({.kind = Kind::kDisconnected, .why = dropped_because_});
    } else if (refused_) {
      inbox.push({.kind = Kind::kRefused, .why = opened.error().message});
    }
    ++session_;
    drop("");
    if (stopping_ || refused_) break;
    log::warn("coordinator {}: {}; retrying in {:.1f} s",
              (HostPort{options_.host, options_.port}).to_string(),
              dropped_because_.empty() ? opened.error().message : dropped_because_, seconds(pause));
    retry_.expires_after(pause);
    co_await retry_.async_wait(kAwait);
    pause = std::min(2 * pause, options_.last_retry);
  }
}

// Connects and registers, all within one deadline.
awaitable<Result<void>> ControlClient::Connection::open() {
  dropped_because_.clear();
  TlsContext tls;
  if (!options_.tls.certificate.empty()) {
    auto made = tls_.context();
    if (!made.ok()) co_return made.error();
    tls = *std::move(made);
  }
  const auto stream = stream_ = std::make_shared<NetStream>(tcp::socket(io_), tls);
  asio::steady_timer timeout(io_, options_.connect_timeout);
  timeout.async_wait([this](error_code ec) {
    if (!ec) drop(fmt::format("no answer within {:.1f} s", seconds(options_.connect_timeout)));
  });
  const Result<void> connected = co_await connect(*stream);
  if (!connected.ok()) co_return connected;
  protocol::Envelope hello;
  *hello.mutable_register_() = options_.description;
  Result<std::string> frame = protocol::encode_frame(hello);
  if (!frame.ok()) co_return frame.error();
  const error_code write_ec = co_await stream->write(asio::buffer(*frame));
  if (write_ec) co_return error(Errc::kPeerLost, "registering: {}", write_ec.message());
  const Result<protocol::Envelope> answer = co_await read();
  if (!answer.ok()) co_return answer.error();
  const protocol::RegisterReply& reply = answer->register_reply();
  if (!answer->has_register_reply()) {
    co_return Error(Errc::kInvalidArgument, "it is not a Millrace coordinator");
  }
  if (reply.has_error()) {
    // kUnavailable is a matter of time: the coordinator has not yet noticed that the group's
    // predecessor of the same name is dead.
    const Errc code = errc_from_wire(reply.error().code());
    refused_ = code != Errc::kUnavailable;
    co_return Error(code, "refused: " + reply.error().message());
  }
  interval_ = std::chrono::milliseconds(std::max(1u, reply.heartbeat_interval_ms()));
  patience_ = reply.patience_ms() > 0 ? Duration(std::chrono::milliseconds(reply.patience_ms()))
                                      : interval_ * options_.missed_heartbeats;
  takes_prefixes_ = reply.takes_cached_prefixes();
  // If more time than this passes between two checks, the excess is time that this process lost.
  attended_.emplace(Clock::steady().now(), 2 * interval_);
  last_message_ = {};
  // An older coordinator does not say its patience, and takes no leases.
  if (reply.patience_ms() == 0) co_return Result<void>();
  co_return co_await report_leases();
}

awaitable<Result<void>> ControlClient::Connection::connect(NetStream& stream) {
  auto [resolve_ec, endpoints] =
      co_await resolver_.async_resolve(options_.host, std::to_string(options_.port), kAwait);
  if (resolve_ec)
    co_return error(Errc::kUnavailable, "cannot resolve its address: {}", resolve_ec.message());
  auto [connect_ec, endpoint] = co_await asio::async_connect(stream.socket(), endpoints, kAwait);
  if (connect_ec) co_return error(Errc::kUnavailable, "connecting: {}", connect_ec.message());
  error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);
  const error_code tls_ec = co_await stream.connect_tls(options_.host);
  if (tls_ec) co_return error(Errc::kUnavailable, "TLS: {}", stream.reason(tls_ec));
  co_return Result<void>();
}

awaitable<Result<void>> ControlClient::Connection::report_leases() {
  const auto stream = stream_;
  for (protocol::LeaseHeld& held : board_.held()) {
    protocol::Envelope envelope;
    *envelope.mutable_lease_held() = std::move(held);
    const Result<std::string> frame = protocol::encode_frame(envelope);
    if (!frame.ok()) co_return frame.error();
    const error_code ec = co_await stream->write(asio::buffer(*frame));
    if (ec) co_return error(Errc::kPeerLost, "reporting leases: {}", ec.message());
  }
  if (!takes_prefixes_) co_return Result<void>();
  const std::string prefixes = cached_prefixes();
  const error_code ec = co_await stream->write(asio::buffer(prefixes));
  if (ec) co_return error(Errc::kPeerLost, "reporting cached prefixes: {}", ec.message());
  co_return Result<void>();
}

// A frame with all cached prefixes. Later changes have a higher sequence number. The coordinator
// skips earlier changes that are still in the outbox, by their number.
std::string ControlClient::Connection::cached_prefixes() const {
  protocol::Envelope envelope;
  *envelope.mutable_cached_prefixes() = board_.cached_prefixes();
  Result<std::string> frame = protocol::encode_frame(envelope);
  MR_CHECK(frame.ok(), "{}", frame.error().message);
  return *std::move(frame);
}

awaitable<Result<protocol::Envelope>> ControlClient::Connection::read() {
  const auto stream = stream_;
  std::array<std::byte, protocol::kFrameHeaderBytes> header{};
  const error_code header_ec = co_await stream->read(asio::buffer(header));
  if (header_ec) co_return error(Errc::kPeerLost, "connection ended: {}", header_ec.message());
  const Result<int64_t> length = protocol::decode_frame_length(header);
  if (!length.ok()) co_return length.error();
  std::vector<std::byte> body(static_cast<size_t>(*length));
  const error_code body_ec = co_await stream->read(asio::buffer(body));
  if (body_ec) co_return error(Errc::kPeerLost, "connection ended: {}", body_ec.message());
  co_return protocol::decode_frame_body(body);
}

awaitable<void> ControlClient::Connection::serve() {
  asio::co_spawn(io_, beat(session_), asio::detached);
  for (;;) {
    Result<protocol::Envelope> envelope = co_await read();
    if (!envelope.ok()) {
      if (dropped_because_.empty()) dropped_because_ = envelope.error().message;
      co_return;
    }
    last_message_ = attended_->passed();
    if (envelope->has_heartbeat()) continue;
    if (envelope->has_resend_cached_prefixes()) {
      std::string frame = cached_prefixes();
      unsent_bytes_ += static_cast<int64_t>(frame.size());
      enqueue(std::move(frame));
      continue;
    }
    // From here on no coordinator needs to be told of this lease.
    if (envelope->has_lease_release()) {
      board_.end(envelope->lease_release().request_id(), envelope->lease_release().lease_id());
    }
    inbox.push({.kind = Kind::kMessage,
                .message = *std::move(envelope),
                .received_at = Clock::steady().now()});
  }
}

awaitable<void> ControlClient::Connection::beat(uint64_t session) {
  for (uint64_t sequence = 1; session == session_ && !stopping_; ++sequence) {
    protocol::Envelope envelope;
    *envelope.mutable_heartbeat() = board_.heartbeat();
    envelope.mutable_heartbeat()->set_sequence(sequence);
    Result<std::string> frame = protocol::encode_frame(envelope);
    MR_CHECK(frame.ok(), "{}", frame.error().message);
    unsent_bytes_ += static_cast<int64_t>(frame->size());
    enqueue(*std::move(frame));
    heartbeat_.expires_after(interval_);
    co_await heartbeat_.async_wait(kAwait);
    if (session != session_) co_return;
    attended_->advance(Clock::steady().now());
    const Duration silent = attended_->passed() - last_message_;
    if (silent > patience_) drop(fmt::format("silent for {:.2f} s", seconds(silent)));
  }
}

void ControlClient::Connection::enqueue(std::string frame) {
  outbox_.push_back(std::move(frame));
  if (std::exchange(writing_, true)) return;
  asio::co_spawn(io_, write_outbox(), asio::detached);
}

awaitable<void> ControlClient::Connection::write_outbox() {
  while (!outbox_.empty()) {
    const std::string frame = std::move(outbox_.front());
    outbox_.pop_front();
    unsent_bytes_ -= static_cast<int64_t>(frame.size());
    // The reader sees a failure too, and ends the session.
    const auto stream = stream_;
    co_await stream->write(asio::buffer(frame));
  }
  writing_ = false;
}

// Ends whatever the socket is doing; the coroutine that waits for it continues from there.
void ControlClient::Connection::drop(const std::string& why) {
  if (dropped_because_.empty()) dropped_because_ = why;
  for (const std::string& frame : outbox_) unsent_bytes_ -= static_cast<int64_t>(frame.size());
  outbox_.clear();
  error_code ignored;
  resolver_.cancel();
  if (stream_) stream_->socket().close(ignored);
  heartbeat_.cancel();
}

ControlClient::ControlClient(ControlOptions options, ControlBoard& board)
    : connection_(std::make_unique<Connection>(std::move(options), board)) {}
ControlClient::~ControlClient() = default;

Result<void> ControlClient::wait_connected(Deadline deadline) {
  return connection_->inbox.wait_connected(deadline);
}
std::optional<ControlEvent> ControlClient::wait(Deadline deadline) {
  return connection_->inbox.wait(deadline);
}
Result<void> ControlClient::send(const protocol::Envelope& envelope) {
  return connection_->send(envelope);
}
bool ControlClient::connected() const {
  return connection_->inbox.connected();
}

}  // namespace millrace::worker
