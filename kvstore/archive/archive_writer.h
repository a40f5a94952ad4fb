// SPDX-License-Identifier: Apache-2.0
// Writes to an archive on a thread of its own, which whoever waits for it can abandon: a write to a
// network disk may hang in the system indefinitely.
//
// The writer owns the data to be written, so a write that hangs holds nothing of the store. An
// abandoned writer stops after the page it is writing, as if the process had been killed then
// (prefix_archive.h says why that does no harm). That write may stay under way until the system
// lets it go, and the process may end before. Nothing more is written after it.
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
  // Columns, each with the request that began with it.
  using Touches = std::vector<std::pair<PageContentKey, int64_t>>;

  explicit ArchiveWriter(std::shared_ptr<PrefixArchive> archive);
  // Abandons the write under way; everything still queued is not written.
  ~ArchiveWriter();
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  // These are carried out in the order of the calls.
  void save(Column column);
  void touch(Touches touches);
  // Whether everything has been written, or has failed, by `until` on `clock`.
  bool wait(const Clock& clock, TimePoint until);
  // The columns neither written nor failed.
  std::vector<PageContentKey> waiting() const;
  // Those that were not written after all, since the last call.
  std::vector<PageContentKey> take_unsaved();
  // The last failure that has not been reported yet.
  std::optional<Error> take_failure();

 private:
  struct Shared;
  static void write_all(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace millrace::kvstore
