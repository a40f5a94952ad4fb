// SPDX-License-Identifier: Apache-2.0
#include "worker/events/zmq/zmq_socket.h"

#include <cerrno>
#include <utility>

namespace millrace::worker {

namespace {

// Largest subscription or replay request.
constexpr int64_t kMaxReceivedBytes = 1024;

Error zmq_error(Errc code, const std::string& what) {
  return error(code, "{}: {}", what, zmq_strerror(zmq_errno()));
}

using Payload = std::shared_ptr<const std::vector<std::byte>>;

// Called by ZeroMQ on a thread of its own; tests/tsan.supp names it.
void release_payload(void*, void* hint) {
  delete static_cast<Payload*>(hint);
}

// ZeroMQ holds a reference until the message has been sent to the last peer.
bool init_shared(zmq_msg_t& message, const Payload& payload) {
  auto held = std::make_unique<Payload>(payload);
  // ZeroMQ does not write to the message.
  auto* bytes = const_cast<std::byte*>(payload->data());
  if (zmq_msg_init_data(&message, bytes, payload->size(), release_payload, held.get()) != 0)
    return false;
  static_cast<void>(held.release());
  return true;
}

}  // namespace

Result<ZmqContext> make_zmq_context() {
  ZmqContext context(zmq_ctx_new(), zmq_ctx_term);
  if (context == nullptr) return zmq_error(Errc::kInternal, "ZeroMQ");
  return context;
}

Result<ZmqSocket> ZmqSocket::open(void* context, int type, int max_queued) {
  ZmqSocket made(zmq_socket(context, type));
  if (made.get() == nullptr) return zmq_error(Errc::kInternal, "ZeroMQ");
  MR_RETURN_IF_ERROR(made.set(ZMQ_LINGER, 0));
  MR_RETURN_IF_ERROR(made.set(ZMQ_SNDHWM, max_queued));
  MR_RETURN_IF_ERROR(made.set(ZMQ_RCVHWM, max_queued));
  if (zmq_setsockopt(made.get(), ZMQ_MAXMSGSIZE, &kMaxReceivedBytes, sizeof kMaxReceivedBytes) !=
      0) {
    return zmq_error(Errc::kInternal, "ZeroMQ");
  }
  return made;
}

Result<void> ZmqSocket::set(int option, int value) {
  if (zmq_setsockopt(get(), option, &value, sizeof value) == 0) return {};
  return zmq_error(Errc::kInternal, "ZeroMQ");
}

Result<void> ZmqSocket::bind(const std::string& endpoint) {
  // Otherwise "tcp://*" means IPv4 only, as in vLLM.
  if (endpoint.find('[') != std::string::npos) MR_RETURN_IF_ERROR(set(ZMQ_IPV6, 1));
  if (zmq_bind(get(), endpoint.c_str()) == 0) return {};
  return zmq_error(Errc::kIo, endpoint);
}

bool ZmqSocket::send(std::span<const std::string_view> parts, const Payload& shared) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool more = i + 1 < parts.size() || shared != nullptr;
    const int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
    if (zmq_send(get(), parts[i].data(), parts[i].size(), flags) < 0) return false;
  }
  if (shared == nullptr) return true;
  zmq_msg_t message;
  if (!init_shared(message, shared)) return false;
  if (zmq_msg_send(&message, get(), ZMQ_DONTWAIT) >= 0) return true;
  zmq_msg_close(&message);
  return false;
}

std::vector<std::string> ZmqSocket::receive() {
  std::vector<std::string> parts;
  zmq_msg_t part;
  zmq_msg_init(&part);
  while (zmq_msg_recv(&part, get(), ZMQ_DONTWAIT) >= 0) {
    parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    if (zmq_msg_more(&part) == 0) break;
  }
  zmq_msg_close(&part);
  return parts;
}

}  // namespace millrace::worker
