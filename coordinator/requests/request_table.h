// SPDX-License-Identifier: Apache-2.0
// Records of requests by id: all that wait, run or hold a lease, and for a while and up to a limit
// those that have ended, so that a client that lost its connection can still ask. The queue bounds
// how many wait, and the groups bound how many hold a lease: a cache takes pages of a group's
// pools, and a store holds at most 65,536 caches.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/requests/request.h"

namespace millrace::coordinator {

class RequestTable {
 public:
  // What happens to a record when its time has come; its state decides which of these it is.
  enum class Due { kDeadline, kLeaseEnd, kForgetting };

  RequestTable(int64_t max_ended, Duration keep_ended)
      : max_ended_(max_ended), keep_ended_(keep_ended) {}

  // False when the id is in use. Replaces a record that is not in use, so that a failed request can
  // be sent again under its id.
  bool insert(const std::shared_ptr<Request>& request);
  std::shared_ptr<Request> find(const std::string& id) const;
  // Records by Request::id_at_group(); several where they share a prefill.
  std::vector<std::shared_ptr<Request>> known_to_groups_as(const std::string& id) const;
  std::vector<std::shared_ptr<Request>> all() const;

  // To be called whenever the state, lease or times of a record have changed.
  void reschedule(const Request& request);
  // The record that is due first, if it is due by `now`; else null.
  std::shared_ptr<Request> first_due(Due what, TimePoint now) const;
  int64_t num_leased() const { return std::ssize(schedule_of(Due::kLeaseEnd)); }

  // Forgets records that are not in use: those that are too old, and the oldest above the limit.
  void forget(TimePoint now);

 private:
  using Schedule = std::multimap<TimePoint, std::shared_ptr<Request>>;
  struct Entry {
    std::shared_ptr<Request> request;
    Due due;
    Schedule::iterator at;
  };

  void erase(const std::string& id);
  static Due due_of(const Request& request);
  TimePoint time_of(const Request& request) const;
  Schedule& schedule_of(Due what) { return schedules_[static_cast<size_t>(what)]; }
  const Schedule& schedule_of(Due what) const { return schedules_[static_cast<size_t>(what)]; }

  int64_t max_ended_;
  Duration keep_ended_;
  std::map<std::string, Entry> by_id_;
  std::multimap<std::string, std::shared_ptr<Request>> by_sent_id_;  // of those sent as another id
  std::array<Schedule, 3> schedules_;  // by Due, so that a tick visits only what is due
};

}  // namespace millrace::coordinator
