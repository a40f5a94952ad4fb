// SPDX-License-Identifier: Apache-2.0
// A file of records, each appended after the one before: length of its body (4 bytes), its checksum
// (8), its body. Only this user can read it. Nothing is synced: data that a process has written is
// in the hands of the system when the process is killed.
//
// Reading is careful: a record that is damaged or cut off does not count, nor does anything after a
// record whose length is damaged.
//
// Threads: one at a time; a disk may hang in any call (background_writes.h). Errors: kIo, with the
// path.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace {

class RecordFile {
 public:
  // Receives the body of a record, which is valid during the call.
  using Visit = std::function<void(std::string_view body)>;

  // Creates the file if there is none.
  static Result<RecordFile> open(const std::string& path);

  // Visits the whole records from first to last; none if the file has more than `most_bytes`.
  Result<void> read(int64_t most_bytes, const Visit& visit) const;
  Result<void> append(std::span<const std::string> bodies);
  // Replaces all records by these: written to another file, which then takes this one's place.
  Result<void> replace(std::span<const std::string> bodies);
  // Bytes written since the file was opened or replaced.
  int64_t bytes_written() const { return bytes_written_; }

 private:
  RecordFile(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  FileDescriptor file_;
  int64_t bytes_written_ = 0;
};

}  // namespace millrace
