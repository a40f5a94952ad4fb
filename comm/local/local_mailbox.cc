// SPDX-License-Identifier: Apache-2.0
#include "comm/local/local_mailbox.h"

#include <utility>

namespace millrace::comm {

Result<TransportReply> LocalMailbox::ask(std::string request, Deadline deadline,
                                         const std::atomic<bool>& interrupted) {
  auto letter = std::make_shared<Letter>(Letter{std::move(request), std::nullopt});
  std::unique_lock lock(mutex_);
  if (closed_) return Error(Errc::kPeerLost, "the server is gone");
  waiting_.push_back(letter);
  changed_.notify_all();
  const bool awake = changed_.wait_until(
      lock, deadline.when(), [&] { return letter->reply.has_value() || closed_ || interrupted; });
  if (interrupted) {
    std::erase(waiting_, letter);
    return Error(Errc::kCancelled, "the call was interrupted");
  }
  if (letter->reply) return std::move(*letter->reply);
  if (awake) return Error(Errc::kPeerLost, "the server is gone");
  std::erase(waiting_, letter);
  return Error(Errc::kDeadlineExceeded, "the server did not reply in time");
}

void LocalMailbox::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::shared_ptr<LocalMailbox::Letter> LocalMailbox::next() {
  std::unique_lock lock(mutex_);
  // Ends with close(), which the server's destructor calls.
  changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
  if (closed_) return nullptr;
  auto letter = std::move(waiting_.front());
  waiting_.pop_front();
  return letter;
}

void LocalMailbox::answer(Letter& letter, TransportReply reply) {
  std::lock_guard lock(mutex_);
  letter.reply = std::move(reply);
  changed_.notify_all();
}

bool LocalMailbox::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

void LocalMailbox::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  waiting_.clear();
  changed_.notify_all();
}

}  // namespace millrace::comm
