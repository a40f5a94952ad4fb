// SPDX-License-Identifier: Apache-2.0
// Moves pages between tiers until the best are on the device. It serves one request at a time and
// the others wait, because Residency keeps a slot free for one move only. Each page is moved in
// three steps: decide (store's lock), copy (no lock), commit (store's lock). A page that was pinned
// or forgotten meanwhile stays where it was, and readers never wait for a move.
#pragma once

#include <mutex>

#include "common/aligned_buffer.h"
#include "kvstore/pages/page_io.h"
#include "kvstore/pages/page_table.h"
#include "kvstore/pages/residency.h"
#include "kvstore/pages/rising_pages.h"

namespace millrace::kvstore {

class PageMover {
 public:
  // All outlive the mover; `mutex` guards `residency` and the tables.
  PageMover(PageIo& io, Residency& residency, std::mutex& mutex)
      : io_(io), residency_(residency), mutex_(mutex), staging_(io.page_bytes()) {}

  // Places the pages of `table`, which must all be written, and moves others out of their way:
  // first the best to the device if `promotes`, then those on disk to the host, into free room or
  // the places of pages that they displace. It moves at most kPlacedBytes from disk; rise() does
  // the rest. If a copy fails, it stops: pages stay where they are, which is slower but not wrong.
  void place(PageTable& table, bool promotes);
  // Moves one page: the best one on disk to the host, or one that is in its way out. False if none
  // should move, or a copy failed.
  bool rise();
  // The same for one page that has risen, to the device.
  bool lift(RisingPages& rising);

 private:
  // The caller of place() waits for a disk to read and write this much: about a tenth of a second.
  static constexpr int64_t kPlacedBytes = int64_t{64} << 20;

  struct Candidate {
    PageEntry* page;
    PagePriority priority;
  };
  std::vector<Candidate> candidates_of(PageTable& table, bool promotes);
  template <typename Plan>
  bool move_while(Plan plan);
  // kNothing: `plan` named no move.
  enum class Moved : uint8_t { kCopied, kNothing, kFailed };
  template <typename Plan>
  Moved move_once(Plan plan);
  Result<void> copy(const PageMove& move);

  PageIo& io_;
  Residency& residency_;
  std::mutex& mutex_;
  std::mutex placing_;     // taken before mutex_
  AlignedBuffer staging_;  // one page; guarded by placing_
};

}  // namespace millrace::kvstore
