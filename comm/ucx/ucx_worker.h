// SPDX-License-Identifier: Apache-2.0
// Owner of a ucp_worker_h: the engine that moves messages, driven by one thread at a time.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>

#include "comm/ucx/ucx_context.h"
#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> create(std::shared_ptr<UcxContext> context);
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;
  ~UcxWorker() { ucp_worker_destroy(worker_); }

  ucp_worker_h handle() const { return worker_; }

  // Calls `callback` with `owner` for messages with this id.
  Result<void> set_handler(unsigned message_id, ucp_am_recv_callback_t callback, void* owner);

  // Does all that can be done without waiting; callbacks run in here.
  void progress();
  // Sleeps until there may be something to do; may return early without reason.
  void wait(Deadline deadline);
  // Progresses until done() or the deadline; returns done().
  template <typename Done>
  bool progress_until(Done done, Deadline deadline);
  // Ends a wait(). Any thread.
  void wake() noexcept { ucp_worker_signal(worker_); }

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h worker, int event_fd)
      : context_(std::move(context)), worker_(worker), event_fd_(event_fd) {}

  const std::shared_ptr<UcxContext> context_;
  ucp_worker_h worker_;
  const int event_fd_;  // the worker's
};

template <typename Done>
bool UcxWorker::progress_until(Done done, Deadline deadline) {
  while (true) {
    progress();
    if (done()) return true;
    if (deadline.passed()) return false;
    wait(deadline);
  }
}

}  // namespace millrace::comm
