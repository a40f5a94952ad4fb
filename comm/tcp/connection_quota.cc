// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/connection_quota.h"

namespace millrace::comm {

Result<ConnectionQuota::Connection> ConnectionQuota::take(std::string_view capability) {
  const std::lock_guard lock(mutex_);
  const auto known = of_capability_.find(capability);
  if (known != of_capability_.end() && known->second >= limits_.of_capability &&
      !make_room(capability)) {
    return error(Errc::kExhausted, "there are {} connections of its lease already",
                 limits_.of_capability);
  }
  if (num_connections_ >= limits_.all && !make_room({})) {
    return error(Errc::kExhausted, "there are {} connections already", num_connections_);
  }
  ++of_capability_[std::string(capability)];
  ++num_connections_;
  const auto entry = entries_.insert(
      entries_.end(), Entry{.capability = std::string(capability), .idle_since = clock_.now()});
  return Connection(*this, entry);
}

bool ConnectionQuota::make_room(std::string_view capability) {
  const TimePoint idle_at_least_since = clock_.now() - limits_.idle;
  Entry* best = nullptr;
  int most = 0;
  for (Entry& entry : entries_) {
    if (entry.busy || entry.gives_way || entry.idle_since > idle_at_least_since) continue;
    if (!capability.empty() && entry.capability != capability) continue;
    const int count = of_capability_.find(entry.capability)->second;
    const bool better =
        best == nullptr || count > most || (count == most && entry.idle_since < best->idle_since);
    if (!better) continue;
    best = &entry;
    most = count;
  }
  if (best == nullptr) return false;
  best->gives_way = true;
  uncount(*best);
  if (best->on_evicted) best->on_evicted();
  return true;
}

void ConnectionQuota::uncount(const Entry& entry) {
  const auto held = of_capability_.find(entry.capability);
  if (--held->second == 0) of_capability_.erase(held);
  --num_connections_;
}

bool ConnectionQuota::begin(Entries::iterator entry) {
  const std::lock_guard lock(mutex_);
  if (entry->gives_way) return false;
  entry->busy = true;
  return true;
}

void ConnectionQuota::end(Entries::iterator entry) {
  const std::lock_guard lock(mutex_);
  entry->busy = false;
  entry->idle_since = clock_.now();
}

bool ConnectionQuota::gives_way(Entries::iterator entry) const {
  const std::lock_guard lock(mutex_);
  return entry->gives_way;
}

void ConnectionQuota::set_on_evicted(Entries::iterator entry, std::function<void()> on_evicted) {
  const std::lock_guard lock(mutex_);
  entry->on_evicted = std::move(on_evicted);
  if (entry->gives_way && entry->on_evicted) entry->on_evicted();
}

void ConnectionQuota::give_back(Entries::iterator entry) noexcept {
  const std::lock_guard lock(mutex_);
  if (!entry->gives_way) uncount(*entry);
  entries_.erase(entry);
}

}  // namespace millrace::comm
