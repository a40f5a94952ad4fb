// SPDX-License-Identifier: Apache-2.0
// Decides which thread of a client pulls what next, and wakes those who wait for it. Thread-safe.
// Outlives its client as long as someone holds a pull.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/transport.h"
#include "common/clock.h"
#include "common/result.h"
#include "kvclient/pull_client.h"
#include "kvclient/pull_task.h"

namespace millrace::kvclient {

class PullQueue : public std::enable_shared_from_this<PullQueue> {
 public:
  struct Work {
    std::shared_ptr<PullTask> task;
    PullJob job;
  };

  PullQueue(int num_threads, int max_load);

  // For the client's threads. Each has a number. Once the queue is closed, none gets more work.
  std::optional<Work> take(int thread);
  // Called around each call of a connection, so that a task that ends can interrupt it.
  // begin_call() returns false if the task has failed: the call must not be made. end_call()
  // returns false if the connection may have been interrupted: it must not be used for another
  // call.
  bool begin_call(int thread, comm::Interruptible& connection);
  bool end_call(int thread);
  void finish(int thread, const Work& work, Result<PullOutcome> outcome);

  // For the pulls. Tasks that are added once the queue is closed fail.
  void add(const std::shared_ptr<PullTask>& task);
  // Nothing if the deadline passed before the task ended or its layer was complete.
  std::optional<Result<void>> wait(PullTask& task, Deadline deadline);
  std::optional<Result<void>> wait_for_layer(PullTask& task, int32_t layer, Deadline deadline);
  // Waits until the pages on the layer's hot list have arrived.
  std::optional<Result<void>> wait_for_hot(PullTask& task, int32_t layer, Deadline deadline);
  void cancel(PullTask& task);
  // Waits until nothing more is written. The task must have failed or be complete.
  void wait_until_quiet(PullTask& task);
  PullProgress progress(const PullTask& task);
  // Fails all tasks, and ends take().
  void close();

 private:
  struct Slot {
    PullTask* task = nullptr;
    comm::Interruptible* connection = nullptr;  // in a call
    bool writing = false;
    bool interrupted = false;
  };
  std::optional<Work> find_work(int thread);
  TimePoint next_time() const;
  void fail(PullTask& task, Error why);
  void fail_late_tasks();
  void end_if_quiet(PullTask& task);
  static std::optional<Result<void>> end_of(const PullTask& task);
  template <typename Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, PullTask& task, Deadline deadline,
                  Condition condition);

  const int max_load_;
  std::mutex mutex_;
  std::condition_variable work_came_, task_changed_;
  std::vector<std::shared_ptr<PullTask>> tasks_;  // that have not ended; the most urgent first
  std::vector<Slot> slots_;                       // by thread
  std::map<std::string, int> load_;               // requests under way, by address
  std::shared_ptr<const std::function<void()>> on_feed_;
  bool closed_ = false;
};

}  // namespace millrace::kvclient
