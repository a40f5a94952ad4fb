// SPDX-License-Identifier: Apache-2.0
// The pages that events have reported, with their tokens, on disk next to the pages that the group
// keeps for its next start, whose own files have no tokens. A record counts only if its page is
// found, so the journal need not be complete, only right: each page is a record with a checksum
// (common/system/record_file.h). Rank 0 only, under the lock of the archive, so nobody else has the
// file.
//
// A record: a format (1 byte), the key (32), whether it has a parent (1), the parent's key (32),
// the token ids (256), the salt.
//
// Threads: one at a time; any call may hang with the disk (page_journal.h). Errors: kIo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/system/record_file.h"
#include "worker/events/stored_page.h"

namespace millrace::worker {

class JournalFile {
 public:
  // Pages read at most: 8.4 million tokens, whose pages are 1.1 TB of an 8B model.
  static constexpr size_t kMaxPages = 131'072;
  // A longer file is not read further, and is begun anew. Room for twice kMaxPages, and for salts.
  static constexpr int64_t kMaxBytes = int64_t{160} << 20;

  using Filter = std::function<bool(const PageContentKey&)>;

  static Result<JournalFile> open(const std::string& path);

  // The wanted pages, each once and behind its parent; a page whose parent is not among them is
  // left out. Returns the first kMaxPages of them.
  Result<std::vector<StoredPage>> read(const Filter& is_wanted) const;
  Result<void> append(std::span<const StoredPage> pages);
  // Replaces the contents with these pages.
  Result<void> replace(std::span<const StoredPage> pages);

 private:
  explicit JournalFile(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
};

}  // namespace millrace::worker
