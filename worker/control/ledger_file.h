// The prefix ledger on disk, beside the pages that the group keeps for its next start (kvstore/archive): a record for each
// prompt, appended when it ends. What it says counts as far as the pages are found, so it need not be right, only read
// with care. Rank 0's; under the lock of the archive, so nobody else has the file.
//
// A record: length of the body (4 bytes), its checksum (8), the body: number of entries (4), each a stored key (8) and a
// page's key (32), and the origins as a serialised CachedPrefixes. A file that ends in the middle of a record, or has one
// that is damaged, counts up to there.
//
// Threads: one at a time; a disk may hang in any call (ledger_writer.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/content/page_keys.h"
#include "common/result.h"
#include "common/system/file_descriptor.h"
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
  bool is_long() const { return bytes_ > kMaxBytes / 2; }
  // This one and no other: written beside it and put in its place.
  Result<void> replace(const LedgerRecord& record);

 private:
  LedgerFile(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  FileDescriptor file_;
  int64_t bytes_ = 0;  // written since it was open or replaced
};

}  // namespace millrace::worker
