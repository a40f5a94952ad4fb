// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/ucx_worker.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/ucx/ucx_error.h"

namespace millrace::comm {
namespace {

// UCX sends its keep-alives in progress(), so even an idle worker must call it from time to time.
constexpr std::chrono::milliseconds kLongestSleep{500};

}  // namespace

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(std::shared_ptr<UcxContext> context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  if (const auto status = ucp_worker_create(context->handle(), &params, &worker);
      status != UCS_OK) {
    return ucx_error(status, "creating a worker");
  }
  int event_fd = -1;
  if (const auto status = ucp_worker_get_efd(worker, &event_fd); status != UCS_OK) {
    ucp_worker_destroy(worker);
    return ucx_error(status, "asking for the worker's event descriptor");
  }
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(context), worker, event_fd));
}

Result<void> UcxWorker::set_handler(unsigned message_id, ucp_am_recv_callback_t callback,
                                    void* owner) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = message_id;
  params.cb = callback;
  params.arg = owner;
  if (const auto status = ucp_worker_set_am_recv_handler(worker_, &params); status != UCS_OK) {
    return ucx_error(status, "setting a message handler");
  }
  return {};
}

void UcxWorker::progress() {
  while (ucp_worker_progress(worker_) != 0) {
  }
}

void UcxWorker::wait(Deadline deadline) {
  if (ucp_worker_arm(worker_) != UCS_OK) {
    // Something arrived in the meantime, or a full queue holds up a send; the reader of that queue
    // may then be waiting for this very core.
    sched_yield();
    return;
  }
  const auto sleep = std::chrono::ceil<std::chrono::milliseconds>(
      std::min<Duration>(deadline.left(), kLongestSleep));
  pollfd events{event_fd_, POLLIN, 0};
  poll(&events, 1, static_cast<int>(sleep.count()));
}

}  // namespace millrace::comm
