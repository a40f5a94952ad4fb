// SPDX-License-Identifier: Apache-2.0
// The connection of one worker group: incoming frames go to the scheduler, outgoing messages are
// sent in order.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "common/logging/paced_line.h"
#include "common/net/net_stream.h"
#include "coordinator/http/server_options.h"
#include "coordinator/net/awaitable.h"
#include "coordinator/net/notifier.h"
#include "coordinator/schedule/scheduler.h"

namespace millrace::coordinator {

// The log lines of all connections to the group port. Without certificates, whoever reaches the port
// can cause any of them.
struct GroupLines {
  PacedLine refused{};
  PacedLine joined{{.pause = std::chrono::seconds(1), .burst = 512}};
  PacedLine left{{.pause = std::chrono::seconds(1), .burst = 512}};
};

class GroupSession final : public GroupLink, public std::enable_shared_from_this<GroupSession> {
 public:
  // All references outlive the session.
  struct Context {
    Scheduler& scheduler;
    asio::thread_pool& helpers;  // read large messages
    const ServerFaults& faults;
    GroupLines& lines;
    std::function<Result<void>()> may_join;  // whether there is room for one more group
    std::function<void()> joined;            // a group has registered
  };

  // Encrypted unless `tls` is null.
  GroupSession(tcp::socket socket, const TlsContext& tls, Context context);

  // Runs until the connection ends. Drops a group that has not registered after `patience`, or that
  // has not read what it was sent `patience` after the end.
  awaitable<void> run(Duration patience);
  bool registered() const { return !group_id_.empty(); }

  void send(const protocol::Envelope& envelope) override;
  void close(const std::string& why) override;
  bool host_answers() const override;

 private:
  awaitable<Result<void>> serve_guarded();
  awaitable<Result<void>> serve();
  awaitable<Result<protocol::Envelope>> read(int64_t max_bytes);
  Result<void> register_group(const protocol::Envelope& envelope);
  // Whether the other end has ended the connection, although what it sent has not all been read.
  bool peer_has_left() const;
  awaitable<void> write_outbox(std::shared_ptr<GroupSession> self);
  awaitable<void> part(Duration patience);

  NetStream stream_;
  const Context context_;
  std::string peer_;
  std::string group_id_;  // "" until registered
  std::string group_name_;
  bool draining_ = false;  // it has said that it will leave
  std::string closed_because_;
  std::deque<std::string> outbox_;
  int64_t outbox_bytes_ = 0;
  bool writing_ = false;
  Notifier written_;
};

}  // namespace millrace::coordinator
