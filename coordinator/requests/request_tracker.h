// SPDX-License-Identifier: Apache-2.0
// All requests that the coordinator knows, and every change of their state: what a change does to
// the queue, the records, the metrics, the log, and whoever waits for the request. Sends nothing to
// a group. One thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/requests/coordinator_metrics.h"
#include "coordinator/requests/request_queue.h"
#include "coordinator/requests/request_table.h"

namespace millrace::coordinator {

class RequestTracker {
 public:
  static constexpr size_t kMostLatestEnded = 32;
  using OnChange = std::function<void(const Request&)>;

  // `on_change` must not call back into the scheduler.
  RequestTracker(RequestQueue queue, RequestTable table, const Clock& clock,
                 CoordinatorMetrics& metrics, OnChange on_change);

  // Puts the request at the end of the queue; kExhausted when it is full. The id must not be in
  // use.
  Result<void> admit(const std::shared_ptr<Request>& request);
  // A client's request that the prefill of another record answers: it is in no queue. The id must
  // not be in use.
  void join(const std::shared_ptr<Request>& request);
  // `heir`, a copy under an id of its own, is from now on what waits or runs, and `request` is only
  // a client's that is to end. The group, if any, is not told.
  void hand_over(const std::shared_ptr<Request>& request, const std::shared_ptr<Request>& heir);
  // Takes the request out of the queue: a group has it.
  void assign(const std::shared_ptr<Request>& request);
  // The group has started computing.
  void begin(Request& request);
  // Puts the request back at the front of the queue, for another group or another try; `why` is
  // for the metrics.
  void requeue(const std::shared_ptr<Request>& request, Errc why);
  void finish(Request& request, protocol::PrefillDone result, Duration lease);
  // The same for a request that has joined; `result` is that of the prefill.
  void finish_joined(Request& request, std::shared_ptr<const protocol::PrefillDone> result,
                     Duration lease);
  // Does nothing if the request has ended already.
  void fail(const std::shared_ptr<Request>& request, Refusal why);
  // The group has computed another layer of a request that has failed already.
  void wasted_layer(const Request& request);
  // To be called after any other change of a request.
  void changed(const Request& request);

  bool busy() const { return queue_.size() > 0 || running_ > 0; }
  // Requests of `owner` that wait or run.
  int open_of(const std::string& owner) const;
  int64_t num_running() const { return running_; }
  // The records of those that ended last, the latest first, as far as they are kept.
  std::vector<std::shared_ptr<const Request>> latest_ended() const;
  const RequestQueue& queue() const { return queue_; }
  RequestTable& table() { return table_; }
  const RequestTable& table() const { return table_; }

 private:
  void ended(const Request& request);
  void count_waiting();

  const Clock& clock_;
  CoordinatorMetrics& metrics_;
  OnChange on_change_;
  RequestQueue queue_;
  RequestTable table_;
  int64_t running_ = 0;  // assigned to a group and not ended
  std::map<std::string, int> open_by_owner_;
  std::deque<std::string> latest_ended_;  // ids, the latest first
};

}  // namespace millrace::coordinator
