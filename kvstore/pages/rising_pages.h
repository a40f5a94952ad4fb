// SPDX-License-Identifier: Apache-2.0
// Pages that were pulled often lately and are not on the device: they are brought there when
// nothing else crosses the bus between it and the host. There a prompt that begins with a page
// counts as a pull of it, once there is time for that.
//
// Keeps no page alive. Not thread-safe: guarded by the store's lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "common/clock.h"
#include "kvstore/pages/page_column.h"
#include "kvstore/pages/residency.h"

namespace millrace::kvstore {

// The bus is idle once nothing has used it for this long: more than there is between the parts of
// a layer or of a pull.
inline constexpr Duration kBusRest = std::chrono::milliseconds(5);

class RisingPages {
 public:
  // Both outlive it. `lifts`: whether pages are brought to the device at all.
  RisingPages(Residency& residency, const Clock& clock, bool lifts)
      : residency_(residency), clock_(clock), lifts_(lifts), bus_used_(clock.now()) {}

  // Counts a pull.
  void pulled(PageEntry& page);
  // A prompt begins with the column's pages. A long prefix has hundreds of thousands, and its
  // prompt waits for the store's lock, so they are counted by count_prefix().
  void begun_with(const std::shared_ptr<PageColumn>& column);

  // Pages were written or read.
  void bus_used() { bus_used_ = clock_.now(); }
  bool bus_rests() const { return clock_.now() - bus_used_ >= kBusRest; }

  // Counts a pull of each page of a column that a prompt has begun with. False if there is none.
  bool count_prefix();
  bool lifts() const { return lifts_; }
  // The next copy that brings a page to the device, or makes room for it there. None: no page that
  // rose is worth a place. Repeat until none.
  std::optional<PageMove> plan();
  // That copy failed: forgets the page.
  void give_up();

 private:
  // More are not remembered: the oldest are forgotten.
  static constexpr size_t kMaxPages = size_t{1} << 18;
  static constexpr size_t kMaxColumns = size_t{1} << 14;

  struct Rising {
    std::weak_ptr<PageColumn> column;
    int64_t row = 0;
  };
  void forget_first();

  Residency& residency_;
  const Clock& clock_;
  const bool lifts_;
  TimePoint bus_used_;
  std::deque<Rising> pages_;
  std::deque<std::weak_ptr<PageColumn>> columns_;
};

}  // namespace millrace::kvstore
