// Columns read from an archive one after the other on a thread of its own, which the waiting side leaves when time is up:
// a read of a network's disk may hang in the system for as long as it likes.
//
// Who is left owns all that it works with: the archive, the keys, and memory into which no column goes that anybody
// could still see. What it brings after that goes with it. A read that was left is under way until the system lets it
// go; the process may end before. That it is under way shows in num_left(), so that nobody starts another one in vain.
//
// One thread uses it, besides its own.
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
  // Whole, and checked.
  struct Column {
    PageContentKey key{};
    int64_t page = 0;
    std::vector<float> digests;
    std::vector<uint64_t> checksums;
    AlignedBuffer pages;  // [rows, page bytes]
  };
  // Reads of an archive that were left and are under way.
  using NumLeft = std::atomic<int>;

  // Begins with the first of `keys`, in their order. `until`: by `clock`, which outlives this.
  ColumnReading(std::shared_ptr<PrefixArchive> archive, std::vector<PageContentKey> keys,
                const Clock& clock, TimePoint until, std::shared_ptr<NumLeft> num_left);
  // Waits for the thread until time is up, and leaves it.
  ~ColumnReading();
  ColumnReading(const ColumnReading&) = delete;
  ColumnReading& operator=(const ColumnReading&) = delete;

  // The next column, in the order of the keys. An error is the last: kDeadlineExceeded once time is up and what was read by
  // then has been handed out; kNotFound behind the last key; as PrefixArchive::load.
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
