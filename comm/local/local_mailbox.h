// SPDX-License-Identifier: Apache-2.0
// Where the connections of a local transport leave requests and its server takes them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/api/transport.h"
#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

class LocalMailbox {
 public:
  struct Letter {
    std::string request;
    std::optional<TransportReply> reply;
  };

  // The client's side. Errors: kDeadlineExceeded; kPeerLost once the mailbox is closed; kCancelled
  // once `interrupted` is set, after which the setter must call wake().
  Result<TransportReply> ask(std::string request, Deadline deadline,
                             const std::atomic<bool>& interrupted);
  void wake();

  // The server's side: the next request to answer; null once closed.
  std::shared_ptr<Letter> next();
  void answer(Letter& letter, TransportReply reply);
  void close();
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Letter>> waiting_;
  bool closed_ = false;
};

}  // namespace millrace::comm
