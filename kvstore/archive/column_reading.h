// SPDX-License-Identifier: Apache-2.0
// Reads columns from an archive one after the other on a thread of its own, which the waiting side
// abandons when time is up: a read from a network disk may hang in the system indefinitely.
//
// An abandoned thread owns everything it works with: the archive, the keys, and memory that nobody
// else can see. Whatever it reads after that is discarded. The abandoned read stays under way until
// the system lets it go, and the process may end before. `num_left` shows that it is under way, so
// that nobody starts another one in vain.
//
// Used by one thread, besides its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "kvstore/archive/prefix_archive.h"

namespace millrace::kvstore {

class ColumnReading {
 public:
  // A column read in full, and checked.
  struct Column {
    PageContentKey key{};
    int64_t page = 0;
    std::vector<float> digests;
    std::vector<uint64_t> checksums;
    AlignedBuffer pages;  // [rows, page bytes]
  };
  // The number of reads of an archive that were abandoned and are still under way.
  using NumLeft = std::atomic<int>;

  // Reads the columns of `keys`, in this order. Time is up at `until` on `clock`, which outlives
  // this.
  ColumnReading(std::shared_ptr<PrefixArchive> archive, std::vector<PageContentKey> keys,
                const Clock& clock, TimePoint until, std::shared_ptr<NumLeft> num_left);
  // Waits for the thread until time is up, then abandons it.
  ~ColumnReading();
  ColumnReading(const ColumnReading&) = delete;
  ColumnReading& operator=(const ColumnReading&) = delete;

  // The next column, in the order of the keys. Nothing follows an error: kDeadlineExceeded, once
  // time is up and all that was read by then has been handed out; kNotFound, after the last key; or
  // those of PrefixArchive::load.
  Result<Column> next();

 private:
  struct Shared;
  static void read_all(Shared& shared);

  const Clock& clock_;
  const TimePoint until_;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace millrace::kvstore
