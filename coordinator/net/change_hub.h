// SPDX-License-Identifier: Apache-2.0
// Tells coroutines that wait for a request when it has changed.
#pragma once

#include <map>
#include <string>

#include "coordinator/net/notifier.h"

namespace millrace::coordinator {

class ChangeHub {
 public:
  // While it lives, changes of one request wake `notifier`.
  class Subscription {
   public:
    Subscription(ChangeHub& hub, const std::string& request_id, Notifier& notifier)
        : hub_(hub), at_(hub.waiting_.emplace(request_id, &notifier)) {}
    ~Subscription() { hub_.waiting_.erase(at_); }
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;

   private:
    ChangeHub& hub_;
    std::multimap<std::string, Notifier*>::iterator at_;
  };

  void changed(const std::string& request_id) {
    const auto [begin, end] = waiting_.equal_range(request_id);
    for (auto at = begin; at != end; ++at) at->second->notify();
  }

 private:
  std::multimap<std::string, Notifier*> waiting_;
};

}  // namespace millrace::coordinator
