// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_server_lane.h"

#include <chrono>
#include <exception>
#include <utility>

#include "comm/ucx/outgoing_message.h"
#include "comm/ucx/ucx_error.h"
#include "comm/ucx/wire_frame.h"
#include "common/log.h"

namespace millrace::comm {
namespace {

// A connection makes one call at a time, and an answer is at most two messages. A client with more
// outstanding does not wait for its replies, or does not read them.
constexpr int kMaxWaitingPerClient = 2;
constexpr int kMaxSendsPerClient = 4;
// Limit over all lanes.
constexpr int64_t kMaxClients = 1024;
constexpr std::chrono::seconds kShutdownLimit{2};

// Nothing while the endpoint is still being set up.
std::optional<Carrier> carrier_of(const std::string& transport_name) {
  if (transport_name == "unknown") return std::nullopt;
  for (const Carrier carrier : {Carrier::kSharedMemory, Carrier::kTcp}) {
    if (transport_name == carrier_name(carrier)) return carrier;
  }
  return Carrier::kOther;
}

}  // namespace

Result<std::unique_ptr<UcxServerLane>> UcxServerLane::create(
    std::shared_ptr<UcxContext> context, const TransportServer::Handler& handler,
    ReaderThreads& readers, ReplyMaker& replies, UcxServerCounts& counts) {
  MR_ASSIGN_OR_RETURN(auto worker, UcxWorker::create(std::move(context)));
  std::unique_ptr<UcxServerLane> lane(
      new UcxServerLane(std::move(worker), handler, readers, replies, counts));
  MR_RETURN_IF_ERROR(
      lane->worker_->set_handler(kRequestMessage, &UcxServerLane::on_request, lane.get()));
  return lane;
}

Result<SocketAddress> UcxServerLane::listen(const SocketAddress& address) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.data();
  params.sockaddr.addrlen = address.size();
  params.conn_handler.cb = &UcxServerLane::on_connection;
  params.conn_handler.arg = this;
  if (const auto status = ucp_listener_create(worker_->handle(), &params, &listener_);
      status != UCS_OK) {
    listener_ = nullptr;
    return ucx_error(status, fmt::format("listening on {}", address.to_string()));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const auto status = ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    return ucx_error(status, "asking for the listener's address");
  }
  return SocketAddress(attributes.sockaddr);
}

UcxServerLane::~UcxServerLane() {
  stop();
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

void UcxServerLane::start(std::string name) {
  name_ = std::move(name);
  thread_ = std::thread([this] { run(); });
}

void UcxServerLane::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  worker_->wake();
  thread_.join();
}

void UcxServerLane::on_connection(ucp_conn_request_h request, void* self) {
  auto& lane = *static_cast<UcxServerLane*>(self);
  if (++lane.counts_.clients <= kMaxClients) {
    lane.arrivals_.push_back(request);
    return;
  }
  --lane.counts_.clients;
  ++lane.counts_.failures;
  lane.say(fmt::format("refusing a client: {} are connected, the limit", kMaxClients));
  ucp_listener_reject(lane.listener_, request);
}

void UcxServerLane::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    worker_->progress();
    try {
      accept_clients();
      answer_requests();
      send_answers();
      drop_lost_clients();
    } catch (const std::exception& why) {  // no memory: the next turn may find some
      say(why.what());
    }
    worker_->wait(Deadline::after(std::chrono::seconds(1)));
  }
  shut_down();
}

void UcxServerLane::accept_clients() {
  for (const ucp_conn_request_h request : std::exchange(arrivals_, {})) {
    auto endpoint = UcxEndpoint::accept(*worker_, request);
    if (!endpoint.ok()) {
      say(endpoint.error().to_string());
      ++counts_.failures;
      --counts_.clients;
      continue;
    }
    auto client = std::make_unique<Client>();
    client->number = ++num_accepted_;
    client->endpoint = std::move(endpoint).value();
    const ucp_ep_h key = client->endpoint->handle();
    clients_.emplace(key, std::move(client));
  }
}

ucs_status_t UcxServerLane::on_request(void* self, const void* frame_data, size_t frame_bytes,
                                       void* text, size_t text_bytes,
                                       const ucp_am_recv_param_t* params) {
  auto& server = *static_cast<UcxServerLane*>(self);
  if (!(params->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) return UCS_OK;
  const auto client = server.clients_.find(params->reply_ep);
  if (client == server.clients_.end()) return UCS_OK;

  const auto frame = read_frame<RequestFrame>(frame_data, frame_bytes);
  const bool valid = frame && !(params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) &&
                     static_cast<int64_t>(text_bytes) <= kMaxTransportHeaderBytes &&
                     client->second->num_waiting < kMaxWaitingPerClient &&
                     *client->second->num_sends < kMaxSendsPerClient;
  if (!valid) {
    client->second->misbehaved = true;
    return UCS_OK;
  }
  ++client->second->num_waiting;
  server.requests_.push_back({params->reply_ep, client->second->number, frame->call,
                              frame->destination_bytes,
                              std::string(static_cast<const char*>(text), text_bytes)});
  return UCS_OK;
}

UcxServerLane::Client* UcxServerLane::find(const Request& request) {
  const auto client = clients_.find(request.client);
  const bool known = client != clients_.end() && client->second->number == request.client_number;
  return known ? client->second.get() : nullptr;
}

void UcxServerLane::answer_requests() {
  for (Request& request : std::exchange(requests_, {})) {
    if (Client* const client = find(request)) answer(*client, std::move(request));
  }
}

void UcxServerLane::answer(Client& client, Request request) {
  ++counts_.requests;
  counts_.bytes_received += static_cast<int64_t>(request.header.size());
  ReplyMaker::Reply reply =
      replies_.call([&] { return handler_(request.header); }, request.destination_bytes);
  if (reply.content.later) {
    answer_later(std::move(request), std::move(reply.content.later));
  } else {
    send(client, request, std::move(reply));
  }
}

void UcxServerLane::answer_later(Request request, ReplyMaker::Make make) {
  readers_.post([this, request = std::move(request), make = std::move(make)] {
    ReplyMaker::Reply reply = replies_.call(make, request.destination_bytes);
    const std::lock_guard lock(answers_mutex_);
    answers_.push_back({request, std::move(reply)});
    worker_->wake();
  });
}

void UcxServerLane::send_answers() {
  std::vector<Answer> answers;
  {
    const std::lock_guard lock(answers_mutex_);
    answers.swap(answers_);
  }
  for (Answer& answer : answers) {
    if (Client* const client = find(answer.to)) send(*client, answer.to, std::move(answer.reply));
  }
}

void UcxServerLane::send(Client& client, const Request& request, ReplyMaker::Reply reply) {
  --client.num_waiting;
  auto sent = send_reply(client, request, std::move(reply));
  if (sent.ok()) return;
  say(sent.error().to_string());
  ++counts_.failures;
}

void UcxServerLane::say(const std::string& what) {
  if (const auto times = line_.due()) {
    log::warn("UCX server {}: {}{}", name_, what, PacedLine::others(*times));
  }
}

Result<void> UcxServerLane::send_reply(Client& client, const Request& request,
                                       ReplyMaker::Reply made) {
  const int64_t payload_bytes = made.payload_bytes;
  const ReplyFrame frame{.errc = made.errc, .call = request.call, .payload_bytes = payload_bytes};
  const bool refused = made.errc != 0;
  TransportReply& reply = made.content;

  count_sent(client, static_cast<int64_t>(reply.header.size()));
  MR_RETURN_IF_ERROR(
      OutgoingMessage::send(OutgoingMessage::with_text(frame, std::move(reply.header)),
                            client.endpoint->handle(), kReplyMessage, client.num_sends));
  if (refused || payload_bytes == 0) return {};
  MR_RETURN_IF_ERROR(OutgoingMessage::send(
      OutgoingMessage::with_payload(PayloadFrame{.call = request.call}, std::move(reply.payload)),
      client.endpoint->handle(), kPayloadMessage, client.num_sends));
  count_sent(client, payload_bytes);
  return {};
}

void UcxServerLane::count_sent(Client& client, int64_t num_bytes) {
  if (!client.carrier) client.carrier = carrier_of(client.endpoint->transport_name());
  const Carrier carrier = client.carrier.value_or(Carrier::kOther);
  counts_.bytes_sent_over[static_cast<size_t>(carrier)] += num_bytes;
}

void UcxServerLane::drop_lost_clients() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    Client& client = *it->second;
    if (client.endpoint->status() == UCS_OK && !client.misbehaved) {
      ++it;
      continue;
    }
    if (client.misbehaved) {
      say("dropping a client that sent a malformed request");
      ++counts_.failures;
    }
    client.endpoint->start_close();
    leaving_.push_back(std::move(it->second));
    it = clients_.erase(it);
  }
  counts_.clients -= static_cast<int64_t>(std::erase_if(leaving_, [](const auto& client) {
    return client->endpoint->closed() && *client->num_sends == 0;
  }));
}

void UcxServerLane::shut_down() {
  for (const ucp_conn_request_h request : std::exchange(arrivals_, {})) {
    ucp_listener_reject(listener_, request);
    --counts_.clients;
  }
  ucp_listener_destroy(std::exchange(listener_, nullptr));
  for (auto& [key, client] : clients_) {
    client->endpoint->start_close();
    leaving_.push_back(std::move(client));
  }
  clients_.clear();
  const auto gone = [this] {
    drop_lost_clients();
    return leaving_.empty();
  };
  if (!worker_->progress_until(gone, Deadline::after(kShutdownLimit))) {
    log::warn("UCX server {}: {} clients did not close within {} s", name_, leaving_.size(),
              kShutdownLimit.count());
  }
}

}  // namespace millrace::comm
