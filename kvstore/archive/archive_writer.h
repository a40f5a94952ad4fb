// Writes into an archive on a thread of its own, which who waits for it can leave: a write to a network's disk may hang in
// the system for as long as it likes.
//
// What is to be written is the writer's own, so a write that hangs holds nothing of the store. One that is left ends with
// its page, as if the process had been killed then (prefix_archive.h says why that is no harm), or is under way until
// the system lets it go; the process may end before. Nothing is written behind it.
//
// The ColumnKeeper owns it. Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/aligned_buffer.h"
#include "common/clock.h"
#include "common/content/page_keys.h"
#include "common/result.h"
#include "kvstore/archive/prefix_archive.h"

namespace millrace::kvstore {

class ArchiveWriter {
 public:
  struct Column {
    PageContentKey key{};
    int64_t page = 0;
    int64_t sequence = 0;  // of the request that used it last
    std::vector<float> digests;
    std::vector<uint64_t> checksums;
    AlignedBuffer pages;  // [rows, page bytes]
  };
  // Columns, and the request that began with each.
  using Touches = std::vector<std::pair<PageContentKey, int64_t>>;

  explicit ArchiveWriter(std::shared_ptr<PrefixArchive> archive);
  // Leaves what is being written; the rest is not.
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  // In the order of the calls.
  void save(Column column);
  void touch(Touches touches);
  // Whether all is written, or has failed, by `until`. By `clock`.
  bool wait(const Clock& clock, TimePoint until);
  // Columns that are neither.
  int64_t num_waiting() const;
  // The last one that nobody has been told of.
  std::optional<Error> take_failure();

 private:
  struct Shared;
  static void write_all(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace millrace::kvstore
