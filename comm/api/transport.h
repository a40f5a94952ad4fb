// SPDX-License-Identifier: Apache-2.0
// Point-to-point request and reply with bulk payload: how KV pages leave a rank. The requester
// sends a small header. The server answers with a small header and a payload that lands in memory
// the requester chose. The transport knows nothing of pages: protocol/kv_messages.proto defines the
// headers, and worker/kv_server answers. Implementations: comm/tcp (the default), comm/ucx (RDMA,
// shared memory), comm/local (in-process, for tests, with fault injection); comm/any picks one by
// address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

inline constexpr int64_t kMaxTransportHeaderBytes = 60 * 1024;
inline constexpr int64_t kMaxTransportPayloadBytes = 64ll << 20;
// What a client presents to be admitted, such as a lease id.
inline constexpr size_t kMaxCapabilityBytes = 64;

// Pieces of memory sent one after the other, as one payload. `keep_alive` holds whatever owns them
// (pins of pages) until the payload has been sent or the peer is known to be gone.
struct Payload {
  int64_t total_bytes() const {
    int64_t total = 0;
    for (const auto piece : pieces) total += static_cast<int64_t>(piece.size());
    return total;
  }

  std::vector<std::span<const std::byte>> pieces;
  std::shared_ptr<void> keep_alive;
};

struct TransportReply {
  std::string header;  // <= kMaxTransportHeaderBytes
  Payload payload;     // <= kMaxTransportPayloadBytes in all
  // If set, it returns the header and payload: for a reply that must wait, for example for a disk.
  // The reply that it returns has no `later` of its own. Called once, on any thread, or dropped if
  // the client goes.
  std::function<TransportReply()> later = {};
};

// The reply as it is sent.
inline TransportReply complete(TransportReply reply) {
  return reply.later ? reply.later() : std::move(reply);
}

// What bytes travel over, as far as counters distinguish it.
// kSameHost: a mapping of the rank's memory, from which the reader copies.
enum class Carrier : uint8_t { kSharedMemory = 0, kTcp = 1, kOther = 2, kSameHost = 3 };
inline constexpr int kNumCarriers = 4;

constexpr std::string_view carrier_name(Carrier carrier) {
  switch (carrier) {
    case Carrier::kSharedMemory:
      return "shm";
    case Carrier::kTcp:
      return "tcp";
    case Carrier::kOther:
      return "other";
    case Carrier::kSameHost:
      return "same-host";
  }
  return "?";
}

struct TransportStats {
  int64_t requests = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t failures = 0;
  int64_t refused = 0;                         // connections not admitted; counted by servers only
  int64_t bytes_sent_over[kNumCarriers] = {};  // bytes_sent by carrier; counted by servers only
};

// Answers requests on one or more threads of its own, from construction to destruction. The handler
// runs on these threads, on several at once, and must not block: while it does, other requests of
// that thread's connections wait. Leave anything that blocks to TransportReply::later, for which a
// server has other threads. The handler sees headers from the network: they may hold anything.
class TransportServer {
 public:
  using Handler = std::function<TransportReply(std::string_view request_header)>;
  // Whether a client that presents this capability may connect. Asked once per connection; the
  // handler decides what each request may have. Called on any thread; must not block.
  using Admits = std::function<bool(std::string_view capability)>;

  virtual ~TransportServer() = default;
  // What a client needs to connect, for a manifest: "scheme://host:port" of an interface that the
  // client can reach (comm/net/address_scheme.h; "host:port" in tests).
  virtual std::string address() const = 0;
  virtual TransportStats stats() const = 0;
};

// Pieces of memory that a payload fills one after the other.
using Destination = std::span<const std::span<std::byte>>;

inline int64_t total_bytes(Destination pieces) {
  int64_t total = 0;
  for (const auto piece : pieces) total += static_cast<int64_t>(piece.size());
  return total;
}

// Something that blocks and can be interrupted.
class Interruptible {
 public:
  virtual ~Interruptible() = default;
  // From any thread: the call under way, or else the next one, ends at once with kCancelled, as if
  // its deadline had passed.
  virtual void interrupt() = 0;
};

// A reply without its payload, which lands in memory that the caller chose.
struct ReplyHead {
  std::string header;
  int64_t payload_bytes = 0;
};

// Told during the call, on its thread, how much of a reply's payload has landed: `num_bytes` from
// its start, which will not change any more. The last call may be missing.
class PayloadObserver {
 public:
  virtual ~PayloadObserver() = default;
  virtual void landed(const ReplyHead& reply, int64_t num_bytes) = 0;
};

// One connection to one server. One thread at a time, except interrupt(). After an error the
// connection is broken: connect again.
class TransportConnection : public Interruptible {
 public:
  using Reply = ReplyHead;
  // The payload lands in `destination`. A payload larger than it is kTooLarge, and the connection
  // stays usable. After the deadline has passed, `destination` may be reused only once the
  // connection is destroyed: destruction waits (at most 2 s) until the transport is known to be
  // quiet.
  virtual Result<Reply> call_into(std::string_view request_header, Destination destination,
                                  Deadline deadline) = 0;
  // The same, into one piece.
  Result<Reply> call(std::string_view request_header, std::span<std::byte> destination,
                     Deadline deadline) {
    return call_into(request_header, Destination(&destination, 1), deadline);
  }

  // `observer` is told from the next call on; null: nobody. It must outlive the connection or be
  // taken back. Transports that do not write in order tell it nothing, so its owner must look at
  // the rest afterwards.
  virtual void observe(PayloadObserver* /*observer*/) {}

  // The transport that carries this connection's bytes as the library reports it: "shm", "tcp",
  // "local".
  virtual std::string transport_name() const = 0;
  virtual TransportStats stats() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // `admits`: null admits everybody. Only comm/tcp asks it; other transports admit everybody.
  virtual Result<std::unique_ptr<TransportServer>> listen(const std::string& host, int port,
                                                          TransportServer::Handler handler,
                                                          TransportServer::Admits admits) = 0;
  // `capability`: at most kMaxCapabilityBytes. kNotFound: the server does not admit it;
  // kUnsupported: it speaks another version or transport; kExhausted: it has too many clients.
  virtual Result<std::unique_ptr<TransportConnection>> connect(const std::string& address,
                                                               const std::string& capability,
                                                               Deadline deadline) = 0;

  // For servers that admit everybody.
  Result<std::unique_ptr<TransportServer>> listen(const std::string& host, int port,
                                                  TransportServer::Handler handler) {
    return listen(host, port, std::move(handler), nullptr);
  }
  Result<std::unique_ptr<TransportConnection>> connect(const std::string& address,
                                                       Deadline deadline) {
    return connect(address, std::string(), deadline);
  }
};

}  // namespace millrace::comm
