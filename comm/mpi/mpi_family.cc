// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_family.h"

#include <utility>

namespace millrace::comm {

MpiFamily::MpiFamily(int first_tag, int last_tag, int64_t max_message_bytes, Duration awake,
                     std::shared_ptr<std::atomic<bool>> session_broken)
    : last_tag_(last_tag),
      max_message_bytes_(max_message_bytes),
      awake_(awake),
      session_broken_(std::move(session_broken)),
      next_tag_(first_tag) {}

Result<void> MpiFamily::check() {
  {
    std::lock_guard lock(mutex_);
    if (first_error_) return *first_error_;
  }
  if (aborted()) return fail(Error(Errc::kCancelled, "the communicator was aborted"));
  return {};
}

Error MpiFamily::fail(Error error) {
  std::lock_guard lock(mutex_);
  if (!first_error_) {
    first_error_ = std::move(error);
    session_broken_->store(true, std::memory_order_release);
  }
  return *first_error_;
}

int MpiFamily::next_tag() {
  std::lock_guard lock(mutex_);
  return next_tag_;
}

Result<void> MpiFamily::take_tag(int agreed_tag) {
  std::lock_guard lock(mutex_);
  if (agreed_tag > last_tag_) {
    return error(Errc::kExhausted, "no MPI tag left for another communicator; the largest is {}",
                 last_tag_);
  }
  next_tag_ = agreed_tag + 1;
  return {};
}

}  // namespace millrace::comm
