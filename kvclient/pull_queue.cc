// SPDX-License-Identifier: Apache-2.0
#include "kvclient/pull_queue.h"

#include <algorithm>

namespace millrace::kvclient {

namespace {

// Pause before a rank is asked again that had no memory to read into, or whose pages were not there
// yet: the time of a few replies.
constexpr std::chrono::milliseconds kFullPause{20};
constexpr std::chrono::milliseconds kNotThereYetPause{5};

}  // namespace

PullQueue::PullQueue(int num_threads, int max_load)
    : max_load_(max_load), slots_(static_cast<size_t>(num_threads)) {}

void PullQueue::add(const std::shared_ptr<PullTask>& task) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    fail(*task, Error(Errc::kCancelled, "the client is gone"));
    return;
  }
  const auto behind = std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& other) {
    return other->request.priority < task->request.priority;
  });
  tasks_.insert(behind, task);
  if (task->request.feed) {
    if (!on_feed_) {
      on_feed_ = std::make_shared<const std::function<void()>>([self = weak_from_this()] {
        const auto queue = self.lock();
        if (!queue) return;
        const std::lock_guard feed_lock(queue->mutex_);
        queue->work_came_.notify_all();
      });
    }
    task->request.feed->listen(on_feed_);
  }
  work_came_.notify_all();
}

std::optional<PullQueue::Work> PullQueue::take(int thread) {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    fail_late_tasks();
    if (auto work = find_work(thread)) return work;
    work_came_.wait_until(lock, next_time());
  }
  return std::nullopt;
}

std::optional<PullQueue::Work> PullQueue::find_work(int thread) {
  const auto load = [this](const std::string& address) {
    const auto known = load_.find(address);
    return known == load_.end() ? 0 : known->second;
  };
  for (const auto& task : tasks_) {
    if (task->failure) continue;
    const auto job = task->next(load, max_load_);
    if (!job) continue;
    if (task->num_taken++ == 0) task->idle += Clock::steady().now() - task->idle_since;
    ++load_[task->address(*job)];
    slots_[static_cast<size_t>(thread)] = {.task = task.get()};
    return Work{task, *job};
  }
  return std::nullopt;
}

// When there may be something to do without a notification.
TimePoint PullQueue::next_time() const {
  TimePoint next = Clock::steady().now() + std::chrono::hours(1);
  for (const auto& task : tasks_) {
    next = std::min(next, task->deadline.when());
    if (const auto again = task->next_time()) next = std::min(next, *again);
    if (task->not_before > Clock::steady().now()) next = std::min(next, task->not_before);
  }
  return next;
}

void PullQueue::fail_late_tasks() {
  for (const auto& task : std::vector(tasks_)) {
    if (task->failure) continue;
    if (task->deadline.passed()) {
      fail(*task, error(Errc::kDeadlineExceeded, "{} of {} pages came in {:.1f} s",
                        task->stats.pages, task->num_pages(), seconds(task->request.timeout)));
    } else if (task->request.feed && task->layers_ready() < std::ssize(task->request.layers)) {
      if (auto why = task->request.feed->failure()) fail(*task, std::move(*why));
    }
  }
}

bool PullQueue::begin_call(int thread, comm::Interruptible& connection) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(thread)];
  if (slot.task->failure) return false;
  if (!slot.writing) ++slot.task->num_writing;
  slot.writing = true;
  slot.connection = &connection;
  slot.interrupted = false;
  return true;
}

bool PullQueue::end_call(int thread) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(thread)];
  slot.connection = nullptr;
  return !slot.interrupted;
}

void PullQueue::finish(int thread, const Work& work, Result<PullOutcome> outcome) {
  const std::lock_guard lock(mutex_);
  PullTask& task = *work.task;
  Slot& slot = slots_[static_cast<size_t>(thread)];
  if (slot.writing) --task.num_writing;
  slot = {};
  const auto load = load_.find(task.address(work.job));
  if (--load->second == 0) load_.erase(load);
  const auto now = Clock::steady().now();
  if (--task.num_taken == 0) task.idle_since = now;
  if (outcome.ok()) {
    if (!task.failure) task.count(work.job, *outcome);
  } else if (outcome.error().code == Errc::kExhausted) {
    task.give_back(work.job, now + kFullPause);
  } else if (outcome.error().code == Errc::kUnavailable && task.request.ask_again) {
    task.give_back(work.job, now + kNotThereYetPause);
    // Once a layer's scores have come, its pages are there, so only jobs for pages pause the task.
    if (!work.job.is_for_scores()) task.not_before = now + kNotThereYetPause;
  } else {
    fail(task, outcome.error());
  }
  end_if_quiet(task);
  // Scores make a layer's pages available to all threads.
  if (work.job.is_for_scores()) {
    work_came_.notify_all();
  } else {
    work_came_.notify_one();
  }
  task_changed_.notify_all();
}

void PullQueue::fail(PullTask& task, Error why) {
  if (task.failure || task.ended) return;
  task.failure =
      error(why.code, "pull of request '{}': {}", task.manifest->request_id, why.message);
  for (Slot& slot : slots_) {
    if (slot.task != &task || slot.connection == nullptr) continue;
    slot.interrupted = true;
    slot.connection->interrupt();
  }
  end_if_quiet(task);
}

void PullQueue::end_if_quiet(PullTask& task) {
  if (task.ended || task.num_writing > 0 || (!task.failure && !task.complete())) return;
  task.ended = Clock::steady().now();
  std::erase_if(tasks_, [&](const auto& other) { return other.get() == &task; });
  task_changed_.notify_all();
}

std::optional<Result<void>> PullQueue::end_of(const PullTask& task) {
  if (!task.ended) return std::nullopt;
  if (task.failure) return Result<void>(*task.failure);
  return Result<void>();
}

template <typename Condition>
bool PullQueue::wait_until(std::unique_lock<std::mutex>& lock, PullTask& task, Deadline deadline,
                           Condition condition) {
  while (!condition()) {
    // Threads inside calls do not see the deadlines of other tasks.
    if (!task.failure && !task.ended && task.deadline.passed()) fail_late_tasks();
    if (condition()) return true;
    if (deadline.passed()) return false;
    const bool alive = !task.failure && !task.ended;
    const auto until = alive ? deadline.earlier_of(task.deadline) : deadline;
    task_changed_.wait_until(lock, until.when());
  }
  return true;
}

std::optional<Result<void>> PullQueue::wait(PullTask& task, Deadline deadline) {
  std::unique_lock lock(mutex_);
  wait_until(lock, task, deadline, [&] { return task.ended.has_value(); });
  return end_of(task);
}

std::optional<Result<void>> PullQueue::wait_for_layer(PullTask& task, int32_t layer,
                                                      Deadline deadline) {
  std::unique_lock lock(mutex_);
  wait_until(lock, task, deadline, [&] { return task.ended || task.layer_complete(layer); });
  if (task.layer_complete(layer)) return Result<void>();
  return end_of(task);
}

std::optional<Result<void>> PullQueue::wait_for_hot(PullTask& task, int32_t layer,
                                                    Deadline deadline) {
  std::unique_lock lock(mutex_);
  wait_until(lock, task, deadline, [&] { return task.ended || task.hot_layer_complete(layer); });
  if (task.hot_layer_complete(layer)) return Result<void>();
  return end_of(task);
}

void PullQueue::cancel(PullTask& task) {
  const std::lock_guard lock(mutex_);
  fail(task, Error(Errc::kCancelled, "its caller cancelled it"));
}

void PullQueue::wait_until_quiet(PullTask& task) {
  std::unique_lock lock(mutex_);
  // Always ends: the transport promises that an interrupted call does.
  task_changed_.wait(lock, [&] { return task.ended.has_value(); });
}

PullProgress PullQueue::progress(const PullTask& task) {
  const std::lock_guard lock(mutex_);
  const auto now = task.ended.value_or(Clock::steady().now());
  PullProgress progress{.stats = task.stats,
                        .layers_complete = task.layers_complete(),
                        .hot_layers_complete = task.hot_layers_complete(),
                        .waiting_s = seconds(task.idle),
                        .end = end_of(task)};
  progress.stats.seconds = seconds(now - task.began);
  progress.stats.hot_pages_total = task.num_hot_pages();
  if (task.hot_at) progress.hot_s = seconds(*task.hot_at - task.began);
  return progress;
}

void PullQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& task : std::vector(tasks_)) {
    fail(*task, Error(Errc::kCancelled, "its client is gone"));
  }
  work_came_.notify_all();
}

}  // namespace millrace::kvclient
