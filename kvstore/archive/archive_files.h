// The two files of an archive: slots, and an index with a header and a record for each slot. Opened by one process at a
// time, which holds a lock on the index as long as it lives; the system gives it back when the process dies.
//
// Header of the index, 4096 bytes: "MRPREFIX", the format's version (4 bytes), length of the identity (4), checksum of
// these and the identity (8), the identity, zeros. Records follow from byte 4096.
//
// Threads: any; the caller sees to it that nobody reads a slot or a record while it is written.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/system/file_descriptor.h"
#include "kvstore/archive/archive_record.h"

namespace millrace::kvstore {

// Changes with the files' layout.
inline constexpr uint32_t kArchiveVersion = 1;

// A predecessor that is being killed holds its lock for so long: ranks whose group broke are gone within a second
// (docs/ARCHITECTURE.md, Failure), and one that hangs holds up nobody's start.
inline constexpr Duration kArchiveLockPatience = std::chrono::seconds(5);

class ArchiveFiles {
 public:
  struct Options {
    std::string directory;  // made where it is not there
    std::string name;       // of the files: NAME.index, NAME.slots
    // What the columns are of, a line for the log: files of another are begun anew. At most kMaxIdentity bytes.
    std::string identity;
    int64_t slot_bytes = 0;
    int64_t max_slots = 0;
    Duration lock_patience = kArchiveLockPatience;
  };
  static constexpr int64_t kHeaderBytes = 4096;
  static constexpr size_t kMaxIdentity = 2048;

  struct FoundRecord {
    int64_t slot = 0;
    ArchiveRecord record;
  };

  // kIo, kDenied (files of another user), kUnavailable (a living process has them): nothing was changed. Files that
  // do not fit are emptied, with a line in the log; so are slots beyond max_slots, and those that the file has not whole.
  static Result<ArchiveFiles> open(const Options& options);

  // Of the slots that are there, as open() found them; of those with a damaged record none.
  const std::vector<FoundRecord>& found() const { return found_; }
  void forget_found() { found_ = {}; }
  // How many slots there are.
  int64_t num_slots() const { return num_slots_; }
  // Takes room on the disk for one more. kIo: it is full.
  Result<void> add_slot();

  Result<void> write(int64_t slot, int64_t offset, std::span<const std::byte> bytes);
  Result<void> read(int64_t slot, int64_t offset, std::span<std::byte> bytes) const;
  Result<void> write_record(int64_t slot, const ArchiveRecord& record);
  Result<void> clear_record(int64_t slot);

 private:
  explicit ArchiveFiles(const Options& options) : options_(options) {}
  Result<FileDescriptor> open_file(const std::string& suffix) const;
  Result<void> lock() const;
  // What speaks against the index' header; "" where it is as it should be, none where there is no header yet.
  Result<std::optional<std::string>> header_fault() const;
  Result<void> begin_anew();
  Result<void> find_slots();
  Result<void> find_records();
  std::string path(const std::string& suffix) const;

  Options options_;
  FileDescriptor index_;
  FileDescriptor slots_;
  int64_t num_slots_ = 0;
  std::vector<FoundRecord> found_;
};

}  // namespace millrace::kvstore
