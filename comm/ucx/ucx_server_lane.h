// SPDX-License-Identifier: Apache-2.0
// One of a server's threads: a worker with a listener of its own, the connections that arrived at
// it, and their requests. A connection stays on the worker at which it arrived: UCX before 1.18
// ends the process (ucs/async/async.c, handler->async == async) if a connection passes to another
// worker while the first has an event of its socket in a queue.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/api/transport.h"
#include "comm/net/reader_threads.h"
#include "comm/net/reply_maker.h"
#include "comm/net/socket_address.h"
#include "comm/ucx/ucx_endpoint.h"
#include "comm/ucx/ucx_worker.h"
#include "common/logging/paced_line.h"

namespace millrace::comm {

// Counters of all lanes of a server.
struct UcxServerCounts {
  std::atomic<int64_t> requests = 0;
  std::array<std::atomic<int64_t>, kNumCarriers> bytes_sent_over = {};
  std::atomic<int64_t> bytes_received = 0;
  std::atomic<int64_t> failures = 0;
  std::atomic<int64_t> clients = 0;
};

class UcxServerLane {
 public:
  // `handler`, `readers`, `replies` and `counts` outlive the lane. `readers` must be stopped before it is.
  static Result<std::unique_ptr<UcxServerLane>> create(std::shared_ptr<UcxContext> context,
                                                       const TransportServer::Handler& handler,
                                                       ReaderThreads& readers, ReplyMaker& replies,
                                                       UcxServerCounts& counts);
  ~UcxServerLane();

  // Call before start(). Returns the address with its port; port 0 takes a free one.
  Result<SocketAddress> listen(const SocketAddress& address);
  // Accepts and answers from here on. `name` is put in front of what it logs.
  void start(std::string name);
  // Gives up its connections, within 2 s, and ends the thread.
  void stop();

 private:
  struct Client {
    uint64_t number = 0;  // unique, whereas handles are reused
    std::unique_ptr<UcxEndpoint> endpoint;
    int num_waiting = 0;  // requests not answered yet
    std::shared_ptr<int> num_sends = std::make_shared<int>(0);
    bool misbehaved = false;
    std::optional<Carrier> carrier;  // once UCX knows
  };
  struct Request {
    ucp_ep_h client;
    uint64_t client_number;
    uint64_t call;
    int64_t destination_bytes;
    std::string header;
  };
  struct Answer {
    Request to;
    ReplyMaker::Reply reply;
  };

  UcxServerLane(std::unique_ptr<UcxWorker> worker, const TransportServer::Handler& handler,
                ReaderThreads& readers, ReplyMaker& replies, UcxServerCounts& counts)
      : worker_(std::move(worker)),
        handler_(handler),
        readers_(readers),
        replies_(replies),
        counts_(counts) {}

  // The following run on the lane's thread.
  void run();
  void accept_clients();
  void answer_requests();
  void send_answers();
  Client* find(const Request& request);
  void answer(Client& client, Request request);
  // Makes the reply on another thread, which leaves the reply to send_answers().
  void answer_later(Request request, ReplyMaker::Make make);
  void send(Client& client, const Request& request, ReplyMaker::Reply reply);
  Result<void> send_reply(Client& client, const Request& request, ReplyMaker::Reply made);
  // For the log, at most once in ten seconds: clients are the cause.
  void say(const std::string& what);
  void count_sent(Client& client, int64_t num_bytes);
  void drop_lost_clients();
  void shut_down();

  static void on_connection(ucp_conn_request_h request, void* self);
  static ucs_status_t on_request(void* self, const void* frame, size_t frame_bytes, void* text,
                                 size_t text_bytes, const ucp_am_recv_param_t* params);

  const std::unique_ptr<UcxWorker> worker_;
  ucp_listener_h listener_ = nullptr;
  const TransportServer::Handler& handler_;
  ReaderThreads& readers_;
  ReplyMaker& replies_;
  PacedLine line_;
  UcxServerCounts& counts_;
  std::string name_;

  std::vector<ucp_conn_request_h> arrivals_;
  std::mutex answers_mutex_;
  std::vector<Answer> answers_;  // made by readers
  uint64_t num_accepted_ = 0;
  std::map<ucp_ep_h, std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Client>> leaving_;
  std::vector<Request> requests_;

  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace millrace::comm
