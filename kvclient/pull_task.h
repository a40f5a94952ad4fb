// SPDX-License-Identifier: Apache-2.0
// One pull as its client's threads see it: its requests in the order of its plan, and its progress.
// Not thread-safe: PullQueue guards what changes.
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
#include "kvclient/order/pull_job.h"
#include "kvclient/order/pull_lanes.h"
#include "kvclient/order/pull_plan.h"
#include "kvclient/pull_request.h"
#include "kvclient/pull_stats.h"

namespace millrace::kvclient {

class PullTask {
 public:
  // `request` must have passed check_request.
  PullTask(std::shared_ptr<const Manifest> from, PullRequest what, int64_t pages_per_request);

  // The next job. `load` gives the requests under way at the rank of an address. None if every rank
  // that has pages to give has `max_load` requests already, or the next layer is not ready.
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
  // Whether the pages on the layer's hot list have arrived.
  bool hot_layer_complete(int32_t layer) const {
    return hot_complete_[static_cast<size_t>(layer - request.first_layer)];
  }
  // Pages on the hot lists that are known.
  int64_t num_hot_pages() const;
  // Layers that can be pulled now, out of those asked for.
  int64_t layers_ready() const;
  // When the first job that was given back can be taken; none if there is none.
  std::optional<TimePoint> next_time() const;
  int64_t num_pages() const { return num_pages_; }
  int32_t layers_complete() const { return layers_complete_; }
  int32_t hot_layers_complete() const { return hot_layers_complete_; }

  const std::shared_ptr<const Manifest> manifest;
  const PullRequest request;
  const Deadline deadline;
  const TimePoint began = Clock::steady().now();

  // Kept by PullQueue.
  PullStats stats;
  std::optional<Error> failure;
  std::optional<TimePoint> hot_at;  // when the pages on all hot lists had arrived
  std::optional<TimePoint> ended;   // complete, or failed and nothing more is written
  int num_writing = 0;              // jobs that may write to the destination
  int num_taken = 0;
  TimePoint idle_since = began;
  Duration idle = Duration::zero();
  TimePoint not_before = began;

 private:
  struct Again {
    TimePoint not_before;
    PullJob job;
  };
  std::optional<PullJob> take_again();

  void count_hot_pages(int64_t layer, int64_t num_pages);

  std::vector<PullLane> lanes_;
  std::unique_ptr<PullPlan> plan_;
  std::vector<Again> again_;
  std::vector<int64_t> pages_left_;  // by layer
  std::vector<int64_t> hot_pages_;   // by layer, arrived
  std::vector<bool> hot_complete_;   // by layer
  int64_t num_pages_ = 0;
  int32_t layers_complete_ = 0;
  int32_t hot_layers_complete_ = 0;
};

}  // namespace millrace::kvclient
