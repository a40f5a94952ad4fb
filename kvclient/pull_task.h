// One pull as its client's threads see it: the requests for pages that it takes, cut from what was
// asked for, and how far it is. Not thread-safe: PullQueue guards what changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "kvclient/page_call.h"
#include "kvclient/pull_request.h"
#include "kvclient/pull_stats.h"

namespace millrace::kvclient {

// One request for pages.
struct PullJob {
  PageRun run;
  int lane = 0;  // in the task's lanes
};

// What a job brought.
struct PullOutcome {
  PerTier<int64_t> pages_by_tier;
  std::map<std::string, int64_t> bytes_by_transport;  // with what came wrong
  int64_t corrupt_pages = 0;

  void add_bytes(std::string_view transport, int64_t bytes) {
    bytes_by_transport[std::string(transport)] += bytes;
  }
};

class PullTask {
 public:
  // `request` must have passed check_request.
  PullTask(std::shared_ptr<const Manifest> from, PullRequest what, int64_t pages_per_request);

  // Of `load`, by lane, the requests that are under way at its rank. None where every rank that
  // has pages to give has `max_load` already, or the next layer is not there yet.
  std::optional<PullJob> next(const std::function<int(const std::string&)>& load, int max_load);
  void give_back(const PullJob& job, TimePoint when) { again_.push_back({when, job}); }
  void count(const PullJob& job, const PullOutcome& outcome);

  const std::string& address(const PullJob& job) const {
    return lanes_[static_cast<size_t>(job.lane)].address;
  }
  bool complete() const { return stats.pages == num_pages_; }
  bool layer_complete(int32_t layer) const {
    return pages_left_[static_cast<size_t>(layer - request.first_layer)] == 0;
  }
  // Layers that can be pulled now, of those asked for.
  int64_t layers_ready() const;
  // When a job that was given back can be taken; none if there is none.
  std::optional<TimePoint> next_time() const;
  int64_t num_pages() const { return num_pages_; }
  int32_t layers_complete() const { return layers_complete_; }

  const std::shared_ptr<const Manifest> manifest;
  const PullRequest request;
  const Deadline deadline;
  const TimePoint began = Clock::steady().now();

  // Kept by PullQueue.
  PullStats stats;
  std::optional<Error> failure;
  std::optional<TimePoint> ended;  // complete, or failed and nothing is written any more
  int num_writing = 0;             // jobs that may write to the destination
  int num_taken = 0;
  TimePoint idle_since = began;
  Duration idle = Duration::zero();
  TimePoint not_before = began;

 private:
  // The requests to one rank, the same for each layer, and the next one.
  struct Lane {
    std::string address;
    std::vector<PageRun> runs;
    int64_t layer = 0;
    size_t run = 0;
  };
  struct Again {
    TimePoint not_before;
    PullJob job;
  };
  std::optional<PullJob> take_again();

  std::vector<Lane> lanes_;
  std::vector<Again> again_;
  std::vector<int64_t> pages_left_;  // by layer
  int64_t num_pages_ = 0;
  int32_t layers_complete_ = 0;
};

}  // namespace millrace::kvclient
