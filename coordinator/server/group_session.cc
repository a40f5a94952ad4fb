// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/group_session.h"

#include <netinet/tcp.h>
#include <poll.h>

#include <array>

#include "common/errc_wire.h"
#include "common/log.h"
#include "common/units.h"
#include "coordinator/net/client_address.h"
#include "coordinator/net/guarded.h"
#include "protocol/codec.h"

namespace millrace::coordinator {

namespace {

// An unknown peer must not make us allocate more than a Register needs.
constexpr int64_t kMaxRegisterBytes = 64 << 10;
// Longer messages are not parsed on the deciding thread.
constexpr int64_t kSmallMessageBytes = 256 << 10;
// Two of the largest messages: a group that lets more pile up is not reading.
constexpr int64_t kMaxOutboxBytes = 2 * protocol::kMaxFrameBytes;

// Heartbeats go out four times a second, and a host acknowledges them even if its processes hang.
constexpr std::chrono::seconds kHostPatience{3};

}  // namespace

GroupSession::GroupSession(tcp::socket socket, const TlsContext& tls, Context context)
    : stream_(std::move(socket), tls),
      context_(std::move(context)),
      peer_(endpoint_name(stream_.socket())),
      written_(stream_.get_executor()) {
  error_code ignored;
  stream_.socket().set_option(tcp::no_delay(true), ignored);
}

awaitable<void> GroupSession::run(Duration patience) {
  const auto self = shared_from_this();
  asio::steady_timer handshake(stream_.get_executor(), patience);
  handshake.async_wait([weak = weak_from_this(), patience](error_code ec) {
    const auto session = weak.lock();
    if (ec || !session || !session->group_id_.empty()) return;
    session->close(fmt::format("it did not register within {:.1f} s", seconds(patience)));
  });
  const Result<void> ended = co_await serve_guarded();
  const std::string why = closed_because_.empty() ? ended.error().message : closed_because_;
  if (group_id_.empty()) {
    if (const auto times = context_.lines.refused.due()) {
      log::warn("group connection from {} refused: {}{}", peer_, why, PacedLine::others(*times));
    }
  } else {
    if (const auto times = context_.lines.left.due()) {
      const bool as_announced = draining_ && closed_because_.empty();
      const std::string line = fmt::format(
          "group '{}' (id {}) from {} {}: {}{}", group_name_, group_id_, peer_,
          as_announced ? "left while draining" : "disconnected", why, PacedLine::others(*times));
      as_announced ? log::info("{}", line) : log::warn("{}", line);
    }
    context_.scheduler.remove_group(group_id_, *this, why);
  }
  co_await part(patience);
}

// What is in the outbox, such as the reason for a refusal, may still go out. What the peer has not
// taken by then is dropped, by the system as well, which would keep it for minutes.
awaitable<void> GroupSession::part(Duration patience) {
  const Deadline end = Deadline::after(patience);
  while (writing_) {
    if (!co_await written_.wait(end)) break;
  }
  error_code ignored;
  if (writing_) stream_.socket().set_option(asio::socket_base::linger(true, 0), ignored);
  stream_.socket().close(ignored);
}

// An exception caused by one group's messages costs that group its connection.
awaitable<Result<void>> GroupSession::serve_guarded() {
  try {
    co_return co_await serve();
  } catch (const std::exception& e) {
    co_return error(Errc::kInternal, "exception: {}", e.what());
  }
}

awaitable<Result<void>> GroupSession::serve() {
  const error_code ec = co_await stream_.accept_tls();
  if (ec) co_return error(Errc::kDenied, "TLS: {}", stream_.reason(ec));
  auto first = co_await read(kMaxRegisterBytes);
  if (!first.ok()) co_return first.error();
  if (Result<void> registered = register_group(*first); !registered.ok()) co_return registered;
  for (;;) {
    auto envelope = co_await read(protocol::kMaxFrameBytes);
    if (!envelope.ok()) co_return envelope.error();
    if (context_.faults.group_message) context_.faults.group_message();
    if (envelope->has_drain()) draining_ = true;
    if (Result<void> taken = context_.scheduler.receive(group_id_, *std::move(envelope));
        !taken.ok()) {
      co_return taken;
    }
  }
}

awaitable<Result<protocol::Envelope>> GroupSession::read(int64_t max_bytes) {
  std::array<std::byte, protocol::kFrameHeaderBytes> header{};
  const error_code header_ec = co_await stream_.read(asio::buffer(header));
  if (header_ec) co_return error(Errc::kPeerLost, "connection ended: {}", header_ec.message());
  const Result<int64_t> length = protocol::decode_frame_length(header);
  if (!length.ok()) co_return length.error();
  if (*length > max_bytes) {
    co_return error(Errc::kTooLarge, "message of {} bytes, limit {} at this point", *length,
                    max_bytes);
  }
  std::vector<std::byte> body(static_cast<size_t>(*length));
  const error_code body_ec = co_await stream_.read(asio::buffer(body));
  if (body_ec) co_return error(Errc::kPeerLost, "connection ended: {}", body_ec.message());
  if (*length <= kSmallMessageBytes) co_return protocol::decode_frame_body(body);
  // Optional, because asio needs a value to return if the work throws.
  using Decoded = std::optional<Result<protocol::Envelope>>;
  auto work = [&body]() -> awaitable<Decoded> { co_return protocol::decode_frame_body(body); };
  Decoded decoded = co_await asio::co_spawn(context_.helpers, work(), asio::use_awaitable);
  co_return *std::move(decoded);
}

Result<void> GroupSession::register_group(const protocol::Envelope& envelope) {
  // It has given up waiting for an answer, for example while this process was stopped; what it would
  // be sent would be lost.
  if (peer_has_left()) return Error(Errc::kPeerLost, "it left before it was let in");
  Result<void> added = error(Errc::kInvalidArgument, "the first message is not Register");
  if (envelope.has_register_()) {
    added = context_.may_join();
    if (added.ok()) added = context_.scheduler.add_group(envelope.register_(), *this);
  }
  if (!added.ok()) {
    protocol::Envelope refusal;
    auto& info = *refusal.mutable_register_reply()->mutable_error();
    info.set_code(errc_to_wire(added.error().code));
    info.set_message(added.error().message);
    send(refusal);
    return added;
  }
  const auto& who = envelope.register_();
  group_id_ = who.group_id();
  group_name_ = who.group_name();
  context_.joined();
  if (const auto times = context_.lines.joined.due()) {
    log::info("group '{}' (id {}) from {}: model '{}', tp {} x cp {}, {} tokens, {}{}",
              who.group_name(), group_id_, peer_, who.model().name(), who.tp(), who.cp(),
              who.max_prompt_tokens(), who.device(), PacedLine::others(*times));
  }
  return {};
}

bool GroupSession::peer_has_left() const {
  auto& socket = const_cast<tcp::socket&>(stream_.socket());
  pollfd state{.fd = socket.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&state, 1, 0) > 0;
}

void GroupSession::send(const protocol::Envelope& envelope) {
  if (!stream_.socket().is_open()) return;
  Result<std::string> frame = protocol::encode_frame(envelope);
  MR_CHECK(frame.ok(), "{}", frame.error().message);
  outbox_bytes_ += static_cast<int64_t>(frame->size());
  outbox_.push_back(*std::move(frame));
  if (outbox_bytes_ > kMaxOutboxBytes) {
    return close(fmt::format("it does not read its messages: {} are waiting, limit {}",
                             format_bytes(outbox_bytes_), format_bytes(kMaxOutboxBytes)));
  }
  if (std::exchange(writing_, true)) return;
  spawn_guarded(stream_.get_executor(), write_outbox(shared_from_this()), "group's outbox");
}

awaitable<void> GroupSession::write_outbox([[maybe_unused]] std::shared_ptr<GroupSession> self) {
  while (!outbox_.empty() && stream_.socket().is_open()) {
    const std::string& frame = outbox_.front();
    const error_code ec = co_await stream_.write(asio::buffer(frame));
    if (ec) break;
    outbox_bytes_ -= static_cast<int64_t>(frame.size());
    outbox_.pop_front();
  }
  writing_ = false;
  written_.notify();
  // A connection that was refused stays open only for the refusal.
  error_code ignored;
  if (group_id_.empty()) stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
}

bool GroupSession::host_answers() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  auto& socket =
      const_cast<tcp::socket&>(stream_.socket());  // asio has no const way to the descriptor
  if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return info.tcpi_unacked == 0 ||
         std::chrono::milliseconds(info.tcpi_last_ack_recv) < kHostPatience;
}

void GroupSession::close(const std::string& why) {
  if (closed_because_.empty()) closed_because_ = why;
  error_code ignored;
  stream_.socket().close(ignored);
}

}  // namespace millrace::coordinator
