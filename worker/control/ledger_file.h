// The prefix ledger on disk, beside the pages that the group keeps for its next start (kvstore/archive): a record for each
// prompt, appended when it ends. What it says counts as far as the pages are found, so it need not be right, only read
// with care. Rank 0's; under the lock of the archive, so nobody else has the file.
//
// A record (common/files/record_file.h): number of entries (4 bytes), each a stored key (8) and a page's key (32), and the
// origins as a serialised CachedPrefixes. One that is cut off or damaged does not count.
//
// Threads: one at a time; a disk may hang in any call (ledger_writer.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/content/page_keys.h"
#include "common/files/record_file.h"
#include "common/result.h"
#include "protocol/control_messages.pb.h"

namespace millrace::worker {

struct LedgerRecord {
  struct Entry {
    uint64_t stored_key = 0;  // common/content/prefix_keys.h
    PageContentKey page{};    // the deepest of that beginning on rank 0

    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;
  protocol::CachedPrefixes origins;  // nothing but its origins
};

class LedgerFile {
 public:
  // More is not read, and the file begun anew: eight times what a ledger may have.
  static constexpr int64_t kMaxBytes = int64_t{32} << 20;

  // kIo.
  static Result<LedgerFile> open(const std::string& path);

  // All whole records, as one: later ones last.
  Result<LedgerRecord> read() const;
  Result<void> append(const LedgerRecord& record);
  // Long enough that replace() is due.
  bool is_long() const { return file_.bytes_written() > kMaxBytes / 2; }
  // This one and no other: written beside it and put in its place.
  Result<void> replace(const LedgerRecord& record);

 private:
  explicit LedgerFile(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
};

}  // namespace millrace::worker
