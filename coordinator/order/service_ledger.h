// SPDX-License-Identifier: Apache-2.0
// How much of the groups' time each owner has had, so that no owner with many or long prompts keeps
// the others waiting: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996, equations 4 and 5;
// several servers: Jin, Chase, Kaur, SIGMETRICS 2004) among owners, in seconds of a group. Time in
// which an owner asked for nothing is not saved up. One thread.
#pragma once

#include <algorithm>
#include <map>
#include <string>

namespace millrace::coordinator {

class ServiceLedger {
 public:
  // The owner with the lowest value has the next turn.
  double turn_of(const std::string& owner) const {
    const auto found = finish_.find(owner);
    return found == finish_.end() ? now_ : std::max(now_, found->second);
  }
  // The owner has the turn, and takes it for `seconds`.
  void take(const std::string& owner, double seconds) {
    now_ = turn_of(owner);
    finish_[owner] = now_ + seconds;
    std::erase_if(finish_, [this](const auto& one) { return one.second <= now_; });
  }
  // The owner has taken `seconds` more than was said, or fewer if negative.
  void correct(const std::string& owner, double seconds) {
    const double finish = turn_of(owner) + seconds;
    if (finish > now_) {
      finish_[owner] = finish;
    } else {
      finish_.erase(owner);
    }
  }

 private:
  double now_ = 0;  // virtual: the turn of whoever was served last
  std::map<std::string, double> finish_;
};

}  // namespace millrace::coordinator
