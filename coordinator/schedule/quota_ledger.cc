// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/quota_ledger.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace::coordinator {

namespace {

// A longer Retry-After would outlive a change of the quota.
constexpr double kMaxRetryAfterS = 3600;

double tokens_per_second(const Caller& caller) {
  return static_cast<double>(caller.quota.tokens_per_minute) / 60;
}

Refusal over_quota(Error why) {
  Refusal refusal(std::move(why));
  refusal.over_quota = true;
  return refusal;
}

}  // namespace

double QuotaLedger::tokens_left(const Caller& caller, TimePoint now) const {
  const auto full = static_cast<double>(caller.quota.tokens_per_minute);
  const auto found = accounts_.find(caller.name);
  if (found == accounts_.end()) return full;
  const Account& account = found->second;
  const double since = seconds(now - account.as_of) * tokens_per_second(caller);
  return std::min(full, account.tokens_left + since);
}

std::optional<Refusal> QuotaLedger::check(const Caller& caller, int open_requests,
                                          TimePoint now) const {
  const Quota& quota = caller.quota;
  if (quota.requests_at_once > 0 && open_requests >= quota.requests_at_once) {
    return over_quota(error(Errc::kExhausted, "{} requests of '{}' wait or run, its quota",
                            open_requests, caller.name));
  }
  if (quota.tokens_per_minute == 0) return std::nullopt;
  const double left = tokens_left(caller, now);
  if (left >= 1) return std::nullopt;
  Refusal refusal =
      over_quota(error(Errc::kExhausted, "'{}' has used up its quota of {} prompt tokens a minute",
                       caller.name, quota.tokens_per_minute));
  const double wait_s = std::ceil((1 - left) / tokens_per_second(caller));
  refusal.retry_after_s = static_cast<int>(std::min(wait_s, kMaxRetryAfterS));
  return refusal;
}

void QuotaLedger::charge(const Caller& caller, int64_t num_tokens, TimePoint now) {
  if (caller.quota.tokens_per_minute == 0) return;
  const double left = tokens_left(caller, now) - static_cast<double>(num_tokens);
  accounts_.insert_or_assign(caller.name, Account{left, now});
}

}  // namespace millrace::coordinator
