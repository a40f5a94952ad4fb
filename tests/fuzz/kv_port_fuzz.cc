// SPDX-License-Identifier: Apache-2.0
// What a KV server reads of one connection, hello and requests, in pieces as a network may cut them. The
// first byte says how long the pieces are, and whether a real gate and lane read them as well, from a
// socket. What is read must not depend on how it was cut, a connection holds no more than its bounds,
// and the server answers those requests, in order, and nothing else. kv_port.dict has the words.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "comm/api/transport.h"
#include "comm/net/reader_threads.h"
#include "comm/tcp/frame_reader.h"
#include "comm/tcp/tcp_gate.h"
#include "comm/tcp/tcp_server_lane.h"
#include "comm/tcp/wire.h"
#include "common/check.h"
#include "common/errc_wire.h"
#include "common/log.h"

using namespace millrace;
using namespace millrace::comm;

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kLease = "0123456789abcdef0123456789abcdef";

// What was read of a connection.
struct Read {
  enum class End { kUnfinishedHello, kRefusedHello, kUnfinished, kRefused };

  bool operator==(const Read&) const = default;

  End end = End::kUnfinishedHello;
  std::string capability;
  std::vector<std::string> requests;
};

// Takes the hello's bytes, as the gate does. Nothing, and `out` says why, if it is none.
std::optional<std::string> read_hello(Bytes& bytes, size_t piece_bytes, Read& out) {
  ClientHelloBytes hello{};
  size_t filled = 0;
  while (filled < hello.size()) {
    const size_t count = std::min({piece_bytes, bytes.size(), hello.size() - filled});
    if (count == 0) return std::nullopt;
    std::memcpy(hello.data() + filled, bytes.data(), count);
    bytes = bytes.subspan(count);
    filled += count;
    const auto come = Bytes(hello).first(filled);
    if (!may_be_client_hello(come) ||
        (filled >= kHelloPrefixBytes && version_of_hello(come) != kTcpWireVersion)) {
      out.end = Read::End::kRefusedHello;
      return std::nullopt;
    }
  }
  const auto capability = read_client_hello(hello);
  if (!capability) {
    out.end = Read::End::kRefusedHello;
    return std::nullopt;
  }
  MR_CHECK(capability->size() <= kMaxCapabilityBytes, "{} bytes", capability->size());
  MR_CHECK(read_client_hello(write_client_hello(*capability)) == *capability, "another hello");
  return std::string(*capability);
}

std::string text_of(const RequestFrame& frame, std::string_view header) {
  return fmt::format("{} {} {}", frame.call, frame.destination_bytes, header);
}

Read read_all(Bytes bytes, size_t piece_bytes) {
  Read out;
  auto capability = read_hello(bytes, piece_bytes, out);
  if (!capability) return out;
  out.end = Read::End::kUnfinished;
  out.capability = *std::move(capability);
  FrameReader reader;
  while (!bytes.empty()) {
    const auto room = reader.room();
    MR_CHECK(!room.empty(), "no room for a request that goes on");
    MR_CHECK(reader.held_bytes() <= kMaxTransportHeaderBytes + 64, "{} bytes", reader.held_bytes());
    const size_t count = std::min({piece_bytes, bytes.size(), room.size()});
    std::memcpy(room.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    auto request = reader.took(count);
    if (!request.ok()) {
      out.end = Read::End::kRefused;
      return out;
    }
    if (!*request) continue;
    MR_CHECK(!reader.in_request(), "a request that is complete goes on");
    const auto& [frame, header] = **request;
    MR_CHECK(header.size() == frame.header_bytes && frame.destination_bytes >= 0, "its frame");
    out.requests.push_back(text_of(frame, header));
  }
  return out;
}

// What a client reads of a server is as little to be trusted.
void read_as_client(Bytes bytes) {
  ServerHelloBytes hello{};
  std::memcpy(hello.data(), bytes.data(), std::min(bytes.size(), hello.size()));
  (void)read_server_hello(hello);
  ReplyFrameBytes reply{};
  std::memcpy(reply.data(), bytes.data(), std::min(bytes.size(), reply.size()));
  const auto frame = read_reply_frame(reply);
  MR_CHECK(!frame || (frame->header_bytes <= kMaxTransportHeaderBytes && frame->payload_bytes >= 0),
           "a reply beyond its bounds");
}

// The reply depends on the request's header alone: the first byte says what becomes of it.
struct Answered {
  enum class How { kAtOnce, kLater, kThrows };

  How how;
  std::string header;
  std::string payload;
};

Answered answer_to(std::string_view request) {
  const auto first = request.empty() ? 0u : static_cast<unsigned char>(request.front());
  const auto how = first % 8 == 7   ? Answered::How::kThrows
                   : first % 8 >= 5 ? Answered::How::kLater
                                    : Answered::How::kAtOnce;
  return {.how = how,
          .header = std::string(request.substr(0, 64)),
          .payload = std::string(first / 8 * 9, 'p')};
}

TransportReply reply_of(const Answered& answered) {
  const auto kept = std::make_shared<std::string>(answered.payload);
  TransportReply reply{.header = answered.header};
  // In pieces, some of them empty.
  const auto bytes = std::as_bytes(std::span(std::as_const(*kept)));
  for (size_t at = 0, size = 0; at < bytes.size(); at += size, ++size) {
    size = std::min(size, bytes.size() - at);
    reply.payload.pieces.push_back(bytes.subspan(at, size));
  }
  reply.payload.keep_alive = kept;
  return reply;
}

TransportReply handle(std::string_view request) {
  const Answered answered = answer_to(request);
  if (answered.how == Answered::How::kThrows) throw std::runtime_error("a handler that throws");
  if (answered.how == Answered::How::kAtOnce) return reply_of(answered);
  return {.later = [answered] { return reply_of(answered); }};
}

// The fuzzer's clock interrupts calls of the system.
template <typename Call>
auto again_if_interrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// A gate and a lane, to which sockets of this machine connect: no ports are used up.
class Server {
 public:
  Server() {
    log::set_level(log::Level::kCritical);
    FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    MR_CHECK(::bind(listener.get(), address(), sizeof(sa_family_t)) == 0, "bind");
    MR_CHECK(::listen(listener.get(), 16) == 0, "listen");
    size_ = sizeof(name_);
    MR_CHECK(::getsockname(listener.get(), address(), &size_) == 0, "name");
    lane_ = *TcpServerLane::create(
        {.handler = handler_, .limits = limits_, .counts = counts_, .readers = readers_});
    gate_ = *TcpGate::create({.admits = admits_,
                              .limits = limits_,
                              .counts = counts_,
                              .quota = quota_,
                              .take =
                                  [this](TcpStream stream, ConnectionQuota::Connection admitted) {
                                    lane_->adopt(std::move(stream), std::move(admitted));
                                  }},
                             std::move(listener));
    lane_->start();
    gate_->start();
  }
  ~Server() {
    gate_.reset();
    readers_.stop();
  }

  FileDescriptor connect() {
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto connected =
        again_if_interrupted([&] { return ::connect(socket.get(), address(), size_); });
    MR_CHECK(connected == 0, "connect");
    return socket;
  }
  // Of replies, once nobody is connected any more.
  int64_t held_bytes() const { return counts_.reply_bytes.load(); }

 private:
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&name_); }

  sockaddr_un name_{.sun_family = AF_UNIX};
  socklen_t size_ = 0;
  const TransportServer::Handler handler_ = handle;
  const TransportServer::Admits admits_ = [](std::string_view capability) {
    return capability == kLease || capability.empty();
  };
  const TcpLimits limits_;
  TcpServerCounts counts_;
  ConnectionQuota quota_{16, 16};
  ReaderThreads readers_{1};
  std::unique_ptr<TcpServerLane> lane_;
  std::unique_ptr<TcpGate> gate_;
};

void append(std::string& out, Bytes bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// All that the server must say to who sends this, and whether it must end the connection then.
std::string all_replies(const Read& read, Bytes said, bool& ends) {
  std::string out;
  ends = true;
  if (read.end == Read::End::kUnfinishedHello || read.end == Read::End::kRefusedHello) {
    ends = read.end == Read::End::kRefusedHello;
    const bool versioned = said.size() >= kHelloPrefixBytes && may_be_client_hello(said) &&
                           version_of_hello(said) != kTcpWireVersion;
    if (versioned) append(out, write_server_hello({.errc = errc_to_wire(Errc::kUnsupported)}));
    return out;
  }
  if (read.capability != kLease && !read.capability.empty()) {
    append(out, write_server_hello({.errc = errc_to_wire(Errc::kNotFound)}));
    return out;
  }
  append(out, write_server_hello({}));
  said = said.subspan(kClientHelloBytes);
  for (size_t i = 0; i < read.requests.size(); ++i) {
    RequestFrameBytes bytes;
    std::memcpy(bytes.data(), said.data(), bytes.size());
    const RequestFrame frame = *read_request_frame(bytes);
    const auto header = said.subspan(bytes.size()).first(frame.header_bytes);
    said = said.subspan(bytes.size() + header.size());
    const auto answered = answer_to({reinterpret_cast<const char*>(header.data()), header.size()});
    if (answered.how == Answered::How::kThrows) return out;
    const auto payload_bytes = static_cast<int64_t>(answered.payload.size());
    ReplyFrame reply{.header_bytes = static_cast<uint32_t>(answered.header.size()),
                     .call = frame.call,
                     .payload_bytes = payload_bytes};
    const bool fits = payload_bytes <= frame.destination_bytes;
    if (!fits) {
      reply.errc = errc_to_wire(Errc::kTooLarge);
      reply.header_bytes = 0;
    }
    append(out, write_reply_frame(reply));
    if (fits) out += answered.header + answered.payload;
  }
  ends = read.end == Read::End::kRefused;
  return out;
}

// Sends it in few enough pieces for the system to take them all while nobody reads replies.
void ask_server(Server& server, Bytes said, size_t piece_bytes, const Read& read) {
  constexpr size_t kMaxPieces = 24;
  bool ends = false;
  const std::string wanted = all_replies(read, said, ends);
  const auto socket = server.connect();
  piece_bytes = std::max(piece_bytes, said.size() / kMaxPieces + 1);
  for (Bytes left = said; !left.empty();) {
    const auto piece = left.first(std::min(piece_bytes, left.size()));
    const auto sent = again_if_interrupted(
        [&] { return ::send(socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL); });
    if (sent <= 0) break;  // it has ended the connection
    left = left.subspan(static_cast<size_t>(sent));
  }
  std::string heard;
  bool ended = false;
  const auto hear = [&] {
    pollfd watched{.fd = socket.get(), .events = POLLIN, .revents = 0};
    const int come = again_if_interrupted([&] { return ::poll(&watched, 1, 20'000); });
    MR_CHECK(come == 1, "{} of {} bytes, and no end", heard.size(), wanted.size());
    char room[4096];
    const auto count =
        again_if_interrupted([&] { return ::recv(socket.get(), room, sizeof(room), 0); });
    ended = count <= 0;
    if (!ended) heard.append(room, static_cast<size_t>(count));
  };
  while (!ended && heard.size() < wanted.size()) hear();
  // Who asks for nothing more is heard of as long as it waits for no reply.
  if (!ends) ::shutdown(socket.get(), SHUT_WR);
  while (!ended) hear();
  MR_CHECK(heard == wanted, "{} bytes are said and not {}", heard.size(), wanted.size());
  MR_CHECK(server.held_bytes() == 0, "{} bytes of replies are held", server.held_bytes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  const size_t piece_bytes = data[0] % 128 + 1u;
  read_as_client(bytes);
  for (const bool with_hello : {false, true}) {
    // Few inputs find the magic of a hello: half of the work is behind one that is right.
    std::vector<std::byte> said;
    if (with_hello) {
      const auto hello = write_client_hello(kLease);
      said.assign(hello.begin(), hello.end());
    }
    said.insert(said.end(), bytes.begin(), bytes.end());
    const auto whole = read_all(said, SIZE_MAX);
    const auto pieces = read_all(said, piece_bytes);
    MR_CHECK(whole == pieces, "{} and {} requests, cut at {}", whole.requests.size(),
             pieces.requests.size(), piece_bytes);
    if (data[0] < 128) continue;
    static Server server;
    ask_server(server, said, piece_bytes, whole);
  }
  return 0;
}
