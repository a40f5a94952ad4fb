// SPDX-License-Identifier: Apache-2.0
#include "kvstore/store_room.h"

#include <algorithm>

#include "common/log.h"
#include "common/units.h"

namespace millrace::kvstore {

namespace {

// Names, in messages, columns that no request of this process has written.
constexpr const char* kNoRequest = "of an earlier life";
// The disk file grows by at least this many slots: a call per page would dominate.
constexpr int64_t kDiskGrowthSlots = 64;

}  // namespace

std::unique_lock<std::mutex> StoreRoom::hold_off_saving(int64_t num_pages) {
  {
    const std::lock_guard lock(mutex_);
    if (num_pages <= available() - num_rows_) return {};
  }
  return keeper_.wait_for_copy();
}

Result<void> StoreRoom::reserve_for(int64_t num_pages, int64_t sequence) {
  const auto growing = alone();
  Columns gone;
  const auto held_off = hold_off_saving(num_pages);
  {
    const std::lock_guard lock(mutex_);
    if (!make(num_pages, sequence, For::kKept, gone)) return none_for(kNoRequest, num_pages);
  }
  gone.clear();
  MR_RETURN_IF_ERROR(grow_disk(kNoRequest, num_pages));
  const std::lock_guard lock(mutex_);
  return reserve(kNoRequest, num_pages);
}

bool StoreRoom::make(int64_t num_pages, int64_t before, For whom, Columns& gone) {
  if (num_pages > available()) return false;
  while (num_pages > residency_.available()) {
    PageColumn* const column = cache_.first_to_go(before);
    // The remaining columns are being read, or are of use to the caller.
    if (column == nullptr) return false;
    residency_.count_cached(*column, -1);
    gone.push_back(cache_.give_way(*column));
    auto& evictions = whom == For::kRequest ? evictions_.for_requests : evictions_.for_kept;
    evictions += column->num_entries();
    residency_.free(*column);
  }
  return true;
}

Result<void> StoreRoom::reserve(const std::string& request_id, int64_t num_pages) {
  if (residency_.disk_shortfall(num_pages) > 0) return none_for(request_id, num_pages);
  residency_.reserve(num_pages);
  return {};
}

Result<void> StoreRoom::grow_disk(const std::string& request_id, int64_t num_pages) {
  int64_t old_slots = 0;
  int64_t new_slots = 0;
  {
    const std::lock_guard lock(mutex_);
    const int64_t shortfall = residency_.disk_shortfall(num_pages);
    if (shortfall == 0) return {};
    old_slots = residency_.slots_allocated(Tier::kDisk);
    new_slots = std::min(old_slots + std::max(shortfall, kDiskGrowthSlots),
                         residency_.slots_total(Tier::kDisk));
  }
  if (new_slots == old_slots) return {};
  if (auto grown = io_.resize_disk(new_slots); !grown.ok()) {
    return error(grown.error().code, "request '{}': {}", request_id, grown.error().message);
  }
  const std::lock_guard lock(mutex_);
  residency_.grow_disk(new_slots - old_slots);
  return {};
}

void StoreRoom::shrink_disk() {
  const auto growing = alone();
  {
    const std::lock_guard lock(mutex_);
    if (!residency_.shrink_disk()) return;
  }
  if (const auto shrunk = io_.resize_disk(0); !shrunk.ok()) {
    log::warn("kvstore: {}", shrunk.error().to_string());
  }
}

Error StoreRoom::none_for(const std::string& request_id, int64_t num_pages) const {
  const auto use = [this](Tier tier) {
    return fmt::format("{} of {}", residency_.slots_used(tier), residency_.slots_total(tier));
  };
  return error(Errc::kExhausted,
               "request '{}' needs {} pages of {}, room for {} (slots used: device {}, host {}, "
               "disk {})",
               request_id, num_pages, format_bytes(io_.page_bytes()), available(),
               use(Tier::kDevice), use(Tier::kHost), use(Tier::kDisk));
}

}  // namespace millrace::kvstore
