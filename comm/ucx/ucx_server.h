// The server end: a listener, its connections and the thread that drives them.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/api/transport.h"
#include "comm/ucx/ucx_endpoint.h"
#include "comm/ucx/ucx_worker.h"

namespace millrace::comm {

class UcxServer final : public TransportServer {
 public:
  static Result<std::unique_ptr<UcxServer>> listen(std::shared_ptr<UcxContext> context,
                                                   const SocketAddress& address, Handler handler);
  ~UcxServer() override;

  std::string address() const override { return address_; }
  TransportStats stats() const override;

 private:
  struct Client {
    std::unique_ptr<UcxEndpoint> endpoint;
    int num_waiting = 0;  // requests that came and are not answered yet
    std::shared_ptr<int> num_sends = std::make_shared<int>(0);
    bool misbehaved = false;
    std::optional<Carrier> carrier;  // once UCX knows
  };
  struct Request {
    ucp_ep_h client;
    uint64_t call;
    int64_t destination_bytes;
    std::string header;
  };

  UcxServer(std::unique_ptr<UcxWorker> worker, Handler handler)
      : worker_(std::move(worker)), handler_(std::move(handler)) {}
  Result<void> start(const SocketAddress& address);

  // On the server's thread.
  void run();
  void accept_clients();
  void answer_requests();
  void answer(Client& client, const Request& request);
  Result<void> send_reply(Client& client, const Request& request, TransportReply reply);
  void count_sent(Client& client, int64_t num_bytes);
  void drop_lost_clients();
  void shut_down();

  static void on_connection(ucp_conn_request_h request, void* self);
  static ucs_status_t on_request(void* self, const void* frame, size_t frame_bytes, void* text,
                                 size_t text_bytes, const ucp_am_recv_param_t* params);

  const std::unique_ptr<UcxWorker> worker_;
  const Handler handler_;
  ucp_listener_h listener_ = nullptr;
  std::string address_;

  std::vector<ucp_conn_request_h> arrivals_;
  std::map<ucp_ep_h, std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Client>> leaving_;
  std::vector<Request> requests_;

  std::atomic<int64_t> num_requests_ = 0;
  std::array<std::atomic<int64_t>, kNumCarriers> bytes_sent_over_ = {};
  std::atomic<int64_t> bytes_received_ = 0;
  std::atomic<int64_t> num_failures_ = 0;

  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace millrace::comm
