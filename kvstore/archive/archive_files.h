// SPDX-License-Identifier: Apache-2.0
// The two files of an archive: slots, and an index with a header and a record for each slot. One
// process at a time opens them. It holds a lock on the index as long as it lives; the system
// releases the lock when the process dies.
//
// Header of the index, 4096 bytes: "MRPREFIX", the format's version (4 bytes), length of the
// identity (4), checksum of these and the identity (8), the identity, zeros. Records follow from
// byte 4096.
//
// Threads: any; the caller makes sure that nobody reads a slot or a record while it is written.
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

// Changes when the layout of the files does.
inline constexpr uint32_t kArchiveVersion = 1;

// How long to wait for a predecessor that is being killed and still holds its lock. Ranks of a
// broken group are gone within a second (docs/ARCHITECTURE.md, Failure), and one that hangs must
// not hold up a start.
inline constexpr Duration kArchiveLockPatience = std::chrono::seconds(5);

class ArchiveFiles {
 public:
  struct Options {
    std::string directory;  // created if missing
    std::string name;       // of the files: NAME.index, NAME.slots
    // What the columns belong to, as a line for the log. Files of another identity are emptied. At
    // most kMaxIdentity bytes.
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

  // kIo, kDenied (files of another user), kUnavailable (a living process has them): nothing was
  // changed. Files that do not fit are emptied, with a line in the log. Slots beyond max_slots, and
  // slots that the file has only in part, are emptied too.
  static Result<ArchiveFiles> open(const Options& options);

  // The records of the existing slots, as open() found them, without damaged records.
  const std::vector<FoundRecord>& found() const { return found_; }
  void forget_found() { found_ = {}; }
  // Number of slots in the file.
  int64_t num_slots() const { return num_slots_; }
  // Allocates disk space for one more slot. kIo: the disk is full.
  Result<void> add_slot();

  Result<void> write(int64_t slot, int64_t offset, std::span<const std::byte> bytes);
  Result<void> read(int64_t slot, int64_t offset, std::span<std::byte> bytes) const;
  Result<void> write_record(int64_t slot, const ArchiveRecord& record);
  Result<void> clear_record(int64_t slot);

 private:
  explicit ArchiveFiles(const Options& options) : options_(options) {}
  Result<FileDescriptor> open_file(const std::string& suffix) const;
  Result<void> lock() const;
  // What is wrong with the index' header; "" if nothing is, none if there is no header yet.
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
