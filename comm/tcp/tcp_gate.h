// SPDX-License-Identifier: Apache-2.0
// Lets clients in: a thread with the listener and the connections that have not been admitted yet.
// Such a stranger costs no memory but its entry here (and, with TLS, OpenSSL's buffers), and has
// little time. Nothing that happens here holds up an admitted client.
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "comm/api/transport.h"
#include "comm/net/socket_address.h"
#include "comm/tcp/connection_quota.h"
#include "comm/tcp/epoll.h"
#include "comm/tcp/tcp_limits.h"
#include "comm/tcp/tcp_server_counts.h"
#include "comm/tcp/tcp_stream.h"
#include "comm/tcp/wire.h"
#include "common/clock.h"
#include "common/logging/paced_line.h"
#include "common/net/tls_source.h"

namespace millrace::comm {

class TcpGate {
 public:
  // All references outlive the gate.
  struct Context {
    const TransportServer::Admits& admits;  // empty: admits everybody
    const TcpLimits& limits;
    TcpServerCounts& counts;
    ConnectionQuota& quota;
    std::shared_ptr<TlsSource> tls;  // null: not encrypted
    std::string name;                // in the log
    // Takes an admitted client, on the gate's thread.
    std::function<void(TcpStream, ConnectionQuota::Connection)> take;
  };

  static Result<FileDescriptor> listen_at(const SocketAddress& address);
  static Result<std::unique_ptr<TcpGate>> create(Context context, FileDescriptor listener);
  TcpGate(const TcpGate&) = delete;
  TcpGate& operator=(const TcpGate&) = delete;
  ~TcpGate();

  void start();

 private:
  // An IPv4 address, or the first 64 bits of an IPv6 address: one host has all addresses behind
  // them.
  using Origin = std::array<unsigned char, 9>;
  struct Stranger {
    TcpStream stream;
    Origin origin;
    TimePoint until;
    bool secured;  // the TLS handshake is over, or there is none
    ClientHelloBytes hello{};
    size_t filled = 0;
    uint32_t watched = EPOLLIN | EPOLLRDHUP;
    const char* why = "it said no hello";  // reason for not letting it in
    ConnectionQuota::Connection admitted;
  };
  using Strangers = std::map<uint64_t, Stranger>;  // in the order of arrival

  TcpGate(Context context, FileDescriptor listener, Epoll epoll)
      : context_(std::move(context)), listener_(std::move(listener)), epoll_(std::move(epoll)) {}
  static Origin origin_of(const sockaddr_storage& address);

  void run();
  int patience_ms() const;
  void accept_some();
  void say_unaccepted(const std::string& why);
  void add(FileDescriptor socket, const Origin& origin);
  // Ends the stranger that came first, of this origin or of all.
  void make_room(const Origin* origin);
  // Continues with a stranger's hello; the stranger may be gone afterwards.
  void serve(uint64_t id) noexcept;
  enum class Verdict { kStays, kGoes, kIsAdmitted };
  Verdict step(uint64_t id, Stranger& stranger);
  Verdict judge(Stranger& stranger);
  Verdict wait_for(uint64_t id, Stranger& stranger, uint32_t events);
  bool answer(Stranger& stranger, int32_t errc) const;
  void drop(Strangers::iterator stranger);
  void drop_late();

  const Context context_;
  const FileDescriptor listener_;
  const Epoll epoll_;
  Strangers strangers_;
  std::map<Origin, int> of_origin_;
  uint64_t next_id_ = 0;
  // In the future while the process has no descriptors or memory left.
  TimePoint accepts_from_;
  PacedLine refused_line_, unaccepted_line_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace millrace::comm
