#include "comm/ucx/ucx_server.h"

#include <chrono>
#include <utility>

#include "comm/ucx/outgoing_message.h"
#include "comm/ucx/ucx_error.h"
#include "comm/ucx/wire_frame.h"
#include "common/errc_wire.h"
#include "common/log.h"

namespace millrace::comm {
namespace {

constexpr size_t kMaxClients = 1024;
// A connection makes one call at a time, and an answer is at most two messages. A client with more
// outstanding does not wait for its replies, or does not read them.
constexpr int kMaxWaitingPerClient = 2;
constexpr int kMaxSendsPerClient = 4;
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

Result<std::unique_ptr<UcxServer>> UcxServer::listen(std::shared_ptr<UcxContext> context,
                                                     const SocketAddress& address,
                                                     Handler handler) {
  MR_ASSIGN_OR_RETURN(auto worker, UcxWorker::create(std::move(context)));
  std::unique_ptr<UcxServer> server(new UcxServer(std::move(worker), std::move(handler)));
  MR_RETURN_IF_ERROR(server->start(address));
  return server;
}

Result<void> UcxServer::start(const SocketAddress& address) {
  MR_RETURN_IF_ERROR(worker_->set_handler(kRequestMessage, &UcxServer::on_request, this));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.data();
  params.sockaddr.addrlen = address.size();
  params.conn_handler.cb = &UcxServer::on_connection;
  params.conn_handler.arg = this;
  if (const auto status = ucp_listener_create(worker_->handle(), &params, &listener_);
      status != UCS_OK) {
    return ucx_error(status, fmt::format("listening on {}", address.to_string()));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const auto status = ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    ucp_listener_destroy(listener_);
    return ucx_error(status, "asking for the listener's address");
  }
  address_ = SocketAddress(attributes.sockaddr).to_string();
  thread_ = std::thread([this] { run(); });
  return {};
}

UcxServer::~UcxServer() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  worker_->wake();
  thread_.join();
}

TransportStats UcxServer::stats() const {
  TransportStats stats{.requests = num_requests_.load(),
                       .bytes_received = bytes_received_.load(),
                       .failures = num_failures_.load()};
  for (int carrier = 0; carrier < kNumCarriers; ++carrier) {
    stats.bytes_sent_over[carrier] = bytes_sent_over_[static_cast<size_t>(carrier)].load();
    stats.bytes_sent += stats.bytes_sent_over[carrier];
  }
  return stats;
}

void UcxServer::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    worker_->progress();
    accept_clients();
    answer_requests();
    drop_lost_clients();
    worker_->wait(Deadline::after(std::chrono::seconds(1)));
  }
  shut_down();
}

void UcxServer::on_connection(ucp_conn_request_h request, void* self) {
  static_cast<UcxServer*>(self)->arrivals_.push_back(request);
}

void UcxServer::accept_clients() {
  for (const ucp_conn_request_h request : std::exchange(arrivals_, {})) {
    if (clients_.size() >= kMaxClients) {
      spdlog::warn("UCX server {}: refusing a client beyond {}", address_, kMaxClients);
      ucp_listener_reject(listener_, request);
      ++num_failures_;
      continue;
    }
    auto endpoint = UcxEndpoint::accept(*worker_, request);
    if (!endpoint.ok()) {
      spdlog::warn("UCX server {}: {}", address_, endpoint.error().to_string());
      ++num_failures_;
      continue;
    }
    auto client = std::make_unique<Client>();
    client->endpoint = std::move(endpoint).value();
    const ucp_ep_h key = client->endpoint->handle();
    clients_.emplace(key, std::move(client));
  }
}

ucs_status_t UcxServer::on_request(void* self, const void* frame_data, size_t frame_bytes,
                                   void* text, size_t text_bytes,
                                   const ucp_am_recv_param_t* params) {
  auto& server = *static_cast<UcxServer*>(self);
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
  server.requests_.push_back({params->reply_ep, frame->call, frame->destination_bytes,
                              std::string(static_cast<const char*>(text), text_bytes)});
  return UCS_OK;
}

void UcxServer::answer_requests() {
  for (const Request& request : std::exchange(requests_, {})) {
    const auto client = clients_.find(request.client);
    if (client != clients_.end()) answer(*client->second, request);
  }
}

void UcxServer::answer(Client& client, const Request& request) {
  --client.num_waiting;
  ++num_requests_;
  bytes_received_ += static_cast<int64_t>(request.header.size());
  TransportReply reply = handler_(request.header);
  auto sent = send_reply(client, request, std::move(reply));
  if (sent.ok()) return;
  spdlog::warn("UCX server {}: {}", address_, sent.error().to_string());
  ++num_failures_;
}

Result<void> UcxServer::send_reply(Client& client, const Request& request, TransportReply reply) {
  const int64_t payload_bytes = reply.payload.total_bytes();
  ReplyFrame frame{.call = request.call, .payload_bytes = payload_bytes};
  if (static_cast<int64_t>(reply.header.size()) > kMaxTransportHeaderBytes ||
      payload_bytes > kMaxTransportPayloadBytes) {
    spdlog::error("UCX server {}: reply of {} + {} bytes, limits {} + {}", address_,
                  reply.header.size(), payload_bytes, kMaxTransportHeaderBytes,
                  kMaxTransportPayloadBytes);
    frame.errc = errc_to_wire(Errc::kInternal);
  } else if (payload_bytes > request.destination_bytes) {
    frame.errc = errc_to_wire(Errc::kTooLarge);
  }
  const bool refused = frame.errc != 0;
  if (refused) {
    reply = {};
    ++num_failures_;
  }

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

void UcxServer::count_sent(Client& client, int64_t num_bytes) {
  if (!client.carrier) client.carrier = carrier_of(client.endpoint->transport_name());
  const Carrier carrier = client.carrier.value_or(Carrier::kOther);
  bytes_sent_over_[static_cast<size_t>(carrier)] += num_bytes;
}

void UcxServer::drop_lost_clients() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    Client& client = *it->second;
    if (client.endpoint->status() == UCS_OK && !client.misbehaved) {
      ++it;
      continue;
    }
    if (client.misbehaved) {
      spdlog::warn("UCX server {}: dropping a client that sent a malformed request", address_);
      ++num_failures_;
    }
    client.endpoint->start_close();
    leaving_.push_back(std::move(it->second));
    it = clients_.erase(it);
  }
  std::erase_if(leaving_, [](const auto& client) {
    return client->endpoint->closed() && *client->num_sends == 0;
  });
}

void UcxServer::shut_down() {
  ucp_listener_destroy(listener_);
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
    spdlog::warn("UCX server {}: {} clients did not close within {} s", address_, leaving_.size(),
                 kShutdownLimit.count());
  }
}

}  // namespace millrace::comm
