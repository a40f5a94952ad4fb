// SPDX-License-Identifier: Apache-2.0
// What a world communicator and all communicators split from it share in one process: they break
// together, and they take their message tags from one range.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

class MpiFamily {
 public:
  // Tags [first_tag, last_tag] belong to this family. `session_broken` is set by the first failure.
  // `awake`: see backoff.h.
  MpiFamily(int first_tag, int last_tag, int64_t max_message_bytes, Duration awake,
            std::shared_ptr<std::atomic<bool>> session_broken);

  int64_t max_message_bytes() const { return max_message_bytes_; }
  Duration awake() const { return awake_; }

  // Any thread, any time.
  void abort() noexcept { aborted_.store(true, std::memory_order_release); }
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }

  // The first error, if there was one.
  Result<void> check();
  // Remembers `error` unless there is an earlier one; returns the earliest.
  Error fail(Error error);

  // The family gave up on transfers that MPI may still be carrying out.
  void abandon_transfers() { abandoned_.store(true, std::memory_order_release); }
  bool has_abandoned_transfers() const { return abandoned_.load(std::memory_order_acquire); }

  // Tags of new communicators are agreed among the ranks of their parent: each proposes its next
  // free one, the largest wins, and all continue after it. So two communicators that share a
  // process never share a tag.
  int next_tag();
  Result<void> take_tag(int agreed_tag);

 private:
  const int last_tag_;
  const int64_t max_message_bytes_;
  const Duration awake_;
  const std::shared_ptr<std::atomic<bool>> session_broken_;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> abandoned_ = false;

  std::mutex mutex_;
  std::optional<Error> first_error_;
  int next_tag_;
};

}  // namespace millrace::comm
