// SPDX-License-Identifier: Apache-2.0
#include "decode/pool/rank_pages.h"

#include "decode/pool/read_dtype.h"

namespace millrace::decode {

Result<void> RankPages::fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency urgency,
                              Deadline deadline) {
  if (pages.empty()) return {};
  if (deadline.passed()) return Error(Errc::kDeadlineExceeded, "no time left to pull pages");
  MR_ASSIGN_OR_RETURN(const auto pull,
                      client_.start(manifest_, {.pages = {pages.begin(), pages.end()},
                                                .dtype = read_dtype(*manifest_),
                                                .timeout = deadline.left(),
                                                .priority = static_cast<int32_t>(urgency),
                                                .float8 = float8_}));
  const auto end = pull->wait(deadline);
  const auto pulled = pull->stats();
  {
    const std::lock_guard lock(mutex_);
    stats_.pages += pulled.pages;
    stats_.bytes += pulled.bytes;
    for (const Tier tier : kTiers) stats_.pages_by_tier[tier] += pulled.pages_by_tier[tier];
    stats_.corrupt_pages += pulled.corrupt_pages;
    stats_.seconds += pulled.seconds;
    for (const auto& [name, bytes] : pulled.bytes_by_transport) {
      stats_.bytes_by_transport[name] += bytes;
    }
  }
  if (end) return *end;
  // Destroying the pull ends it before the memory is used for anything else.
  return error(Errc::kDeadlineExceeded, "request '{}': {} of {} pages came in time",
               manifest_->request_id, pulled.pages, pages.size());
}

kvclient::PullStats RankPages::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace millrace::decode
