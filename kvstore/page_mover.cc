// SPDX-License-Identifier: Apache-2.0
#include "kvstore/page_mover.h"

#include <algorithm>

#include "common/log.h"

namespace millrace::kvstore {

void PageMover::place(PageTable& table, bool promotes) {
  std::lock_guard placing(placing_);
  const auto candidates = candidates_of(table, promotes);
  for (const Candidate& candidate : candidates) {
    if (!promotes) break;
    if (!move_while([&] { return residency_.plan_promotion(*candidate.page); })) return;
  }
  int64_t places_left = kPlacedBytes / io_.page_bytes();
  for (const Candidate& candidate : candidates) {
    const auto plan = [&] {
      const auto takes = places_left > 0 ? Residency::Takes::kPlaces : Residency::Takes::kRoom;
      auto move = residency_.plan_warming(*candidate.page, takes);
      if (move && move->to == Tier::kDisk) --places_left;
      return move;
    };
    if (!move_while(plan)) return;
  }
}

bool PageMover::rise() {
  std::lock_guard placing(placing_);
  return move_once([&] { return residency_.plan_rise(); }) == Moved::kCopied;
}

bool PageMover::lift(RisingPages& rising) {
  std::lock_guard placing(placing_);
  const Moved moved = move_once([&] { return rising.plan(); });
  if (moved == Moved::kFailed) {
    std::lock_guard lock(mutex_);
    rising.give_up();
  }
  return moved == Moved::kCopied;
}

// The pages that may move, the best first: those on disk, and those on the host if the device
// accepts any. There are none if all pages stay in host memory, as with a GPU; sorting a hundred
// thousand of them for nothing took 20 ms.
std::vector<PageMover::Candidate> PageMover::candidates_of(PageTable& table, bool promotes) {
  std::vector<Candidate> candidates;
  {
    std::lock_guard lock(mutex_);
    if (table.dead) return {};
    const bool to_device = promotes && residency_.slots_total(Tier::kDevice) > 0;
    for (const auto& column : table.columns()) {
      for (PageEntry& page : column->entries()) {
        if (page.state != PageState::kWritten) continue;  // dropped
        const Tier tier = page.slots.best();
        if (tier == Tier::kDisk || (tier == Tier::kHost && to_device)) {
          candidates.push_back({&page, page.priority});
        }
      }
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return b.priority < a.priority; });
  return candidates;
}

// Carries out moves while `plan`, called under the lock, names one. False if a copy failed: the
// next would probably fail too.
template <typename Plan>
bool PageMover::move_while(Plan plan) {
  Moved moved = Moved::kCopied;
  while (moved == Moved::kCopied) moved = move_once(plan);
  return moved == Moved::kNothing;
}

template <typename Plan>
PageMover::Moved PageMover::move_once(Plan plan) {
  std::optional<PageMove> move;
  {
    std::lock_guard lock(mutex_);
    move = plan();
  }
  if (!move) return Moved::kNothing;
  const auto copied = copy(*move);
  {
    std::lock_guard lock(mutex_);
    residency_.finish(*move, copied.ok());
  }
  if (copied.ok()) return Moved::kCopied;
  log::warn("kvstore: cannot move a page, it stays in its tier: {}", copied.error().to_string());
  return Moved::kFailed;
}

Result<void> PageMover::copy(const PageMove& move) {
  std::span<const std::byte> bytes = io_.address(move.from, move.from_slot);
  if (bytes.empty()) {
    const std::span staged(staging_.as<std::byte>(), static_cast<size_t>(io_.page_bytes()));
    MR_RETURN_IF_ERROR(io_.read(move.from, move.from_slot, *move.page, staged));
    bytes = staged;
  }
  PageSlots destination;
  destination[move.to] = move.to_slot;
  return io_.write(destination, bytes);
}

}  // namespace millrace::kvstore
