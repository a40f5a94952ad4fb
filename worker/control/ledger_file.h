// SPDX-License-Identifier: Apache-2.0
// The prefix ledger on disk, beside the pages that the group keeps for its next start
// (kvstore/archive). A record is appended for each prompt when it ends. An entry counts only if its
// page is found, so the file may be wrong, but must be read with care. It is rank 0's, and under
// the archive's lock, so no other process uses the file.
//
// A record (common/system/record_file.h) has the number of entries (4 bytes), the entries, each a
// stored key (8) and a page's key (32), and the origins as a serialised CachedPrefixes. A record
// that is cut off or damaged is ignored.
//
// Threads: one at a time. A disk may hang in any call (ledger_writer.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/content/page_keys.h"
#include "common/result.h"
#include "common/system/record_file.h"
#include "protocol/control_messages.pb.h"

namespace millrace::worker {

struct LedgerRecord {
  struct Entry {
    uint64_t stored_key = 0;  // common/content/prefix_keys.h
    PageContentKey page{};    // the deepest page of that beginning on rank 0

    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;
  protocol::CachedPrefixes origins;  // only its origins are set
};

class LedgerFile {
 public:
  // A longer file is not read but begun anew. Eight times the size that a ledger may have.
  static constexpr int64_t kMaxBytes = int64_t{32} << 20;

  // Fails with kIo.
  static Result<LedgerFile> open(const std::string& path);

  // All whole records as one, later ones last.
  Result<LedgerRecord> read() const;
  Result<void> append(const LedgerRecord& record);
  // Whether the file is so long that replace() is due.
  bool is_long() const { return file_.bytes_written() > kMaxBytes / 2; }
  // Replaces all records by this one: a new file is written beside the old one and takes its place.
  Result<void> replace(const LedgerRecord& record);

 private:
  explicit LedgerFile(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
};

}  // namespace millrace::worker
