// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only. The kernel reads only the pages that are touched, so ranks that read
// different slices of one checkpoint share the page cache and read nothing else. Somebody else may
// write over the file or cut it short meanwhile: whoever has read what matters calls unchanged().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/result.h"
#include "common/system/file_identity.h"
#include "common/system/guarded_range.h"

namespace millrace {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // When it was opened.
  const FileIdentity& identity() const { return identity_; }
  // kIo if the path leads to another file now, or the file was written to since it was opened, so
  // that bytes read so far may be of both.
  Result<void> unchanged() const;
  // Whether bytes that were read are missing from the file: it was cut short.
  bool torn() const { return guard_.torn(); }

 private:
  MappedFile(std::string path, FileIdentity identity, std::span<const std::byte> bytes);
  std::string path_;
  FileIdentity identity_;
  std::span<const std::byte> bytes_;
  GuardedRange guard_;
};

// The whole contents of a small file; refuses a file larger than `max_bytes` before reading it.
Result<std::string> read_text_file(const std::string& path, int64_t max_bytes);

}  // namespace millrace
