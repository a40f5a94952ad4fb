// SPDX-License-Identifier: Apache-2.0
// How much of its quota each name has used. A minute's worth of prompt tokens may be used at once
// and comes back evenly. A prompt is let in while at least one token is left, and counts in full: a
// long prompt is paid for by the minutes after it. One thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/clock.h"
#include "coordinator/access/caller.h"
#include "coordinator/requests/refusal.h"

namespace millrace::coordinator {

class QuotaLedger {
 public:
  // Whether `caller`, of whose requests `open_requests` wait or run, may send another prompt.
  std::optional<Refusal> check(const Caller& caller, int open_requests, TimePoint now) const;
  // A queued prompt counts, whatever becomes of it.
  void charge(const Caller& caller, int64_t num_tokens, TimePoint now);

 private:
  struct Account {
    double tokens_left;  // less than 0: a debt
    TimePoint as_of;
  };

  double tokens_left(const Caller& caller, TimePoint now) const;

  std::map<std::string, Account> accounts_;  // of names that ever had such a quota
};

}  // namespace millrace::coordinator
