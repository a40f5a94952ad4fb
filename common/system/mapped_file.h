// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only. The kernel reads only the pages that are touched, so ranks that read
// different slices of one checkpoint share the page cache and read nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/result.h"

namespace millrace {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes);
  std::string path_;
  std::span<const std::byte> bytes_;
};

// The whole contents of a small file; refuses a file larger than `max_bytes` before reading it.
Result<std::string> read_text_file(const std::string& path, int64_t max_bytes);

}  // namespace millrace
