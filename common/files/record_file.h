// A file of records, each appended behind the one before: length of its body (4 bytes), its checksum (8), its body. Readable
// by this user alone. Nothing is synced: what a process has written is the system's when it is killed.
//
// It is read with care: a record that is damaged or cut off does not count, nor what follows one whose length is damaged.
//
// Threads: one at a time; a disk may hang in any call (background_writes.h). Errors: kIo, with the path.
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
  // Sees the body of a record, which lives as long as the call.
  using Visit = std::function<void(std::string_view body)>;

  // Made where there is none.
  static Result<RecordFile> open(const std::string& path);

  // The whole records, the first first; none of a file that has more than `most_bytes`.
  Result<void> read(int64_t most_bytes, const Visit& visit) const;
  Result<void> append(std::span<const std::string> bodies);
  // These and no others: written beside it and put in its place.
  Result<void> replace(std::span<const std::string> bodies);
  // Written since it was opened or replaced.
  int64_t bytes_written() const { return bytes_written_; }

 private:
  RecordFile(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  FileDescriptor file_;
  int64_t bytes_written_ = 0;
};

}  // namespace millrace
