// Records of requests by id: all that wait, run or hold a lease, and those that ended, for a while
// and up to a number, so that a client that lost its connection can still ask. The queue bounds who
// waits, and the groups who holds a lease: a cache has pages in a group's pools, and a store holds
// 65,536 caches at most.
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

  // False when the id is in use. A record that is not gives way, so that a failed request can be
  // sent again under its id.
  bool insert(const std::shared_ptr<Request>& request);
  std::shared_ptr<Request> find(const std::string& id) const;

  // Of records that are not in use, forgets those that are too old, and the oldest ones above the
  // limit.
  void forget(TimePoint now);

  std::vector<std::shared_ptr<Request>> all() const;

 private:
  int64_t max_ended_;
  Duration keep_ended_;
  std::map<std::string, std::shared_ptr<Request>> by_id_;
};

}  // namespace millrace::coordinator
