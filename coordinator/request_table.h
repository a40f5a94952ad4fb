// Records of requests by id: all that run or wait, and those that ended, for a while and up to a
// number, so that a client that lost its connection can still ask.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/request.h"

namespace millrace::coordinator {

class RequestTable {
 public:
  RequestTable(int64_t max_ended, Duration keep_ended)
      : max_ended_(max_ended), keep_ended_(keep_ended) {}

  // False when a record of that id is in the way: one that waits, runs or holds a lease. A record
  // that ended otherwise gives way, so that a failed request can be sent again under its id.
  bool insert(const std::shared_ptr<Request>& request);
  std::shared_ptr<Request> find(const std::string& id) const;

  // Forgets ended records that hold no lease and are too old, and the oldest ones above the limit.
  void forget(TimePoint now);

  std::vector<std::shared_ptr<Request>> all() const;

 private:
  int64_t max_ended_;
  Duration keep_ended_;
  std::map<std::string, std::shared_ptr<Request>> by_id_;
};

}  // namespace millrace::coordinator
