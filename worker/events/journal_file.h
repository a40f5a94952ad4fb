// Which pages events have told of, with their tokens, on disk beside the pages that the group keeps for its next start: the
// files of these have no tokens. What it says counts as far as the pages are found, so it need not be complete, only right:
// each page is a record with a checksum (common/files/record_file.h). Rank 0's; under the lock of the archive, so
// nobody else has the file.
//
// A record: a format (1 byte), the key (32), whether it has a parent (1), the parent's key (32), the token ids (256), the salt.
//
// Threads: one at a time; a disk may hang in any call (page_journal.h). Errors: kIo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/files/record_file.h"
#include "common/result.h"
#include "worker/events/stored_page.h"

namespace millrace::worker {

class JournalFile {
 public:
  // What is read: 8.4 million tokens, whose pages are 1.1 TB of an 8B model.
  static constexpr size_t kMaxPages = 131'072;
  // More is not read, and the file begun anew: as many again, and with room for salts.
  static constexpr int64_t kMaxBytes = int64_t{160} << 20;

  using Filter = std::function<bool(const PageContentKey&)>;

  static Result<JournalFile> open(const std::string& path);

  // Pages that are wanted, each once and behind its parent: one whose parent is not among them is left out. The first
  // kMaxPages of them.
  Result<std::vector<StoredPage>> read(const Filter& is_wanted) const;
  Result<void> append(std::span<const StoredPage> pages);
  // These and no others.
  Result<void> replace(std::span<const StoredPage> pages);

 private:
  explicit JournalFile(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
};

}  // namespace millrace::worker
