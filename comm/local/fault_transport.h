// SPDX-License-Identifier: Apache-2.0
// A Transport that makes chosen calls of another one fail, for tests of the code that must cope.
// Calls are chosen by their number, so a run can be repeated.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/transport.h"

namespace millrace::comm {

enum class FaultKind {
  kFlipByte,     // the call succeeds, one byte of its payload is wrong
  kDropRequest,  // the server does not receive it: kDeadlineExceeded, at once
  kDropReply,    // the client does not receive the answer: kDeadlineExceeded, at once
  kLosePeer,     // kPeerLost
};

struct Fault {
  FaultKind kind = FaultKind::kLosePeer;
  int64_t first_call = 0;  // counted from 0, over all connections of the transport
  int64_t num_calls = 1;
  int64_t byte = 0;  // kFlipByte: which byte, modulo the payload's size
};

struct FaultPolicy {
  std::vector<Fault> faults;
};

// The inner transport must outlive this one; connections may outlive both. An error breaks its
// connection as it does without faults. Thread-safe; with several threads the numbers of calls
// depend on their order.
class FaultTransport final : public Transport {
 public:
  FaultTransport(Transport& inner, FaultPolicy policy);
  using Transport::connect;
  using Transport::listen;

  Result<std::unique_ptr<TransportServer>> listen(const std::string& host, int port,
                                                  TransportServer::Handler handler,
                                                  TransportServer::Admits admits) override;
  Result<std::unique_ptr<TransportConnection>> connect(const std::string& address,
                                                       const std::string& capability,
                                                       Deadline deadline) override;

  // Calls so far, faulty or not.
  int64_t num_calls() const { return num_calls_->load(); }

 private:
  Transport& inner_;
  const FaultPolicy policy_;
  const std::shared_ptr<std::atomic<int64_t>> num_calls_;
};

}  // namespace millrace::comm
