// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/check.h"
#include "common/log.h"
#include "common/system/file_descriptor.h"

namespace millrace::tokenizer {

namespace {

// How soon the death of a process without work is noticed.
constexpr std::chrono::seconds kLook{1};

}  // namespace

struct Tokenizer::Impl {
  struct Job {
    Frame request;
    Deadline deadline;
    std::weak_ptr<const void> wanted;
    Done done;
  };

  explicit Impl(const TokenizerOptions& given)
      : options(given), interrupt(::eventfd(0, EFD_CLOEXEC)) {
    options.process.interrupt = interrupt.get();
  }

  void serve();
  // Returns a process, or none when the tokenizer is about to end.
  std::optional<TokenizerProcess> start_process();
  bool serve_with(TokenizerProcess& process);
  // False where the process is no longer usable.
  bool run(TokenizerProcess& process, Job& job);
  std::optional<Job> next_job();
  Result<void> take_on(const TokenizerProcess& process);
  void started(const TokenizerProcess& process);
  void lost(const std::string& why);
  void failed_to_start(const Error& why);
  // Why no request is accepted now, if so. Call with the lock held.
  std::optional<Error> why_not() const;
  void refuse_waiting(const Error& why);
  void pause();
  void expire_waiting();
  void answer_first(Result<void> result);
  void end_waiting(const Error& why);

  TokenizerOptions options;  // as given, and `interrupt`
  const FileDescriptor interrupt;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> waiting;
  bool ending = false;
  int ready = 0;
  int failed_starts = 0;  // since a process last answered
  int64_t replaced = 0;
  std::string last_error;
  std::optional<int64_t> num_ids;  // from the first process; the others have the same
  std::string library;
  std::promise<Result<void>> first;
  bool first_answered = false;
  std::vector<std::thread> threads;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Tokenizer::~Tokenizer() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_all();
  const uint64_t one = 1;
  MR_CHECK(::write(impl_->interrupt.get(), &one, sizeof one) == sizeof one, "eventfd");
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->end_waiting(Error(Errc::kUnavailable, "the tokenizer is shutting down"));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const TokenizerOptions& options) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::make_unique<Impl>(options)));
  Impl& impl = *tokenizer->impl_;
  auto first = impl.first.get_future();
  impl.threads.emplace_back([&impl] { impl.serve(); });
  MR_RETURN_IF_ERROR(first.get());
  for (int i = 1; i < options.processes; ++i) impl.threads.emplace_back([&impl] { impl.serve(); });
  return tokenizer;
}

// A process ends with the thread that started it: each thread keeps its own.
void Tokenizer::Impl::serve() {
  while (auto process = start_process()) {
    if (!serve_with(*process)) return;
  }
}

std::optional<TokenizerProcess> Tokenizer::Impl::start_process() {
  while (true) {
    {
      const std::lock_guard lock(mutex);
      if (ending) return std::nullopt;
    }
    auto process = TokenizerProcess::start(options.process);
    Result<void> usable = process.ok() ? take_on(*process) : Result<void>(process.error());
    const bool ok = usable.ok();
    if (!ok) {
      failed_to_start(usable.error());
      refuse_waiting(usable.error());
    }
    answer_first(std::move(usable));
    if (ok) return std::move(process).value();
    pause();
  }
}

Result<void> Tokenizer::Impl::take_on(const TokenizerProcess& process) {
  const std::lock_guard lock(mutex);
  if (num_ids && *num_ids != process.num_ids()) {
    return error(
        Errc::kCorrupt,
        "{}/tokenizer.json has {} token ids and had {} before: start this program again to "
        "use another",
        options.process.directory, process.num_ids(), *num_ids);
  }
  num_ids = process.num_ids();
  if (library.empty()) library = process.library();
  ++ready;
  return {};
}

void Tokenizer::Impl::failed_to_start(const Error& why) {
  const std::lock_guard lock(mutex);
  ++failed_starts;
  last_error = why.message;
  // The caller reports the first failure.
  if (first_answered) log::error("tokenizer: {}", why.message);
}

// Called when no process is left to take requests.
void Tokenizer::Impl::refuse_waiting(const Error& why) {
  std::deque<Job> refused;
  {
    const std::lock_guard lock(mutex);
    if (ready == 0) refused.swap(waiting);
  }
  for (Job& job : refused) {
    job.done(error(Errc::kUnavailable, "the tokenizer cannot be started: {}", why.message));
  }
}

void Tokenizer::Impl::answer_first(Result<void> result) {
  const std::lock_guard lock(mutex);
  if (first_answered) return;
  first_answered = true;
  if (!result.ok()) ending = true;
  first.set_value(std::move(result));
}

// Meanwhile, waiting requests are still failed at their deadlines.
void Tokenizer::Impl::pause() {
  std::unique_lock lock(mutex);
  const int doublings = std::min(failed_starts, 16);
  const Duration wanted = options.first_pause * (int64_t{1} << doublings);
  const Deadline end = Deadline::after(std::min<Duration>(wanted, options.longest_pause));
  while (!ending && !end.passed()) {
    changed.wait_until(lock, std::min(end.when(), Deadline::after(kLook).when()));
    lock.unlock();
    expire_waiting();
    lock.lock();
  }
}

void Tokenizer::Impl::expire_waiting() {
  std::vector<Job> late;
  {
    const std::lock_guard lock(mutex);
    const auto passed = std::stable_partition(
        waiting.begin(), waiting.end(), [](const Job& job) { return !job.deadline.passed(); });
    std::move(passed, waiting.end(), std::back_inserter(late));
    waiting.erase(passed, waiting.end());
  }
  for (Job& job : late) {
    job.done(Error(Errc::kDeadlineExceeded, "no tokenizer was free by the deadline"));
  }
}

bool Tokenizer::Impl::serve_with(TokenizerProcess& process) {
  while (true) {
    auto job = next_job();
    bool useful = process.alive();
    std::string why = "it died without work";
    {
      const std::lock_guard lock(mutex);
      // The process died before it was asked, so another one may take the request. At the end all
      // waiting requests are failed.
      if (job && (ending || !useful)) waiting.push_front(*std::exchange(job, std::nullopt));
      if (ending) {
        --ready;
        return false;
      }
    }
    if (useful && job) {
      useful = run(process, *job);
      why = "it died, or did not answer in time";
    }
    if (useful) continue;
    lost(why);
    expire_waiting();
    pause();
    return true;
  }
}

// None if a while passes without a request.
std::optional<Tokenizer::Impl::Job> Tokenizer::Impl::next_job() {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, kLook, [this] { return ending || !waiting.empty(); });
  while (!ending && !waiting.empty()) {
    Job job = std::move(waiting.front());
    waiting.pop_front();
    if (job.wanted.expired()) continue;
    return job;
  }
  return std::nullopt;
}

bool Tokenizer::Impl::run(TokenizerProcess& process, Job& job) {
  if (job.deadline.passed()) {
    job.done(Error(Errc::kDeadlineExceeded, "no tokenizer was free by the deadline"));
    return true;
  }
  auto reply = process.exchange(job.request, job.deadline);
  const bool useful = reply.ok();
  if (useful) {
    const std::lock_guard lock(mutex);
    failed_starts = 0;
  }
  if (!useful && reply.error().code == Errc::kCancelled) {
    reply = Error(Errc::kUnavailable, "the tokenizer is shutting down");
  }
  job.done(std::move(reply));
  return useful;
}

void Tokenizer::Impl::lost(const std::string& why) {
  const std::lock_guard lock(mutex);
  --ready;
  ++replaced;
  last_error = why;
  log::warn("tokenizer of {}: {}; starting another process", options.process.directory, why);
}

void Tokenizer::Impl::end_waiting(const Error& why) {
  for (Job& job : waiting) job.done(why);
  waiting.clear();
}

std::optional<Error> Tokenizer::Impl::why_not() const {
  // A process that is being replaced is back soon; one that cannot be started may never be.
  if (ready == 0 && failed_starts > 0) {
    return error(Errc::kUnavailable, "the tokenizer cannot be started: {}", last_error);
  }
  if (std::ssize(waiting) < options.max_waiting) return std::nullopt;
  return error(Errc::kExhausted, "{} texts wait for the tokenizer, the limit", options.max_waiting);
}

void Tokenizer::submit(Frame request, Deadline deadline, std::weak_ptr<const void> wanted,
                       Done done, Turn turn) {
  {
    std::unique_lock lock(impl_->mutex);
    if (auto refusal = impl_->why_not()) {
      lock.unlock();
      return done(*std::move(refusal));
    }
    Impl::Job job{std::move(request), deadline, std::move(wanted), std::move(done)};
    auto& waiting = impl_->waiting;
    waiting.insert(turn == Turn::kNext ? waiting.begin() : waiting.end(), std::move(job));
  }
  // notify_one() might wake only a thread that pauses, and the notification would be lost.
  impl_->changed.notify_all();
}

Result<Frame> Tokenizer::call(Frame request, Deadline deadline) {
  const auto promise = std::make_shared<std::promise<Result<Frame>>>();
  auto reply = promise->get_future();
  submit(std::move(request), deadline, promise,
         [promise](Result<Frame> result) { promise->set_value(std::move(result)); });
  return reply.get();
}

int64_t Tokenizer::num_ids() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_ids.value_or(0);
}

const std::string& Tokenizer::library() const {
  return impl_->library;
}

bool Tokenizer::renders_chats() const {
  return impl_->options.process.chat;
}

const std::string& Tokenizer::directory() const {
  return impl_->options.process.directory;
}

TokenizerHealth Tokenizer::health() const {
  const std::lock_guard lock(impl_->mutex);
  return {.ready = impl_->ready,
          .processes = impl_->options.processes,
          .replaced = impl_->replaced,
          .last_error = impl_->last_error};
}

}  // namespace millrace::tokenizer
