// SPDX-License-Identifier: Apache-2.0
// What tells, without reading it, that a file is not the one that it was: which file a path leads
// to, its size, and when its contents and its other properties last changed.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "common/result.h"

namespace millrace {

struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t size = 0;
  int64_t written_ns = 0;  // since 1970; may be set by anybody who may write the file
  int64_t changed_ns = 0;  // set by the system, also by a new name or mode

  bool operator==(const FileIdentity&) const = default;
};

FileIdentity file_identity(const struct stat& status);
// kNotFound, kIo.
Result<FileIdentity> file_identity(const std::string& path);
// Whether it is the same file with the same contents, as far as can be known; it may have another
// name or mode.
bool same_contents(const FileIdentity& a, const FileIdentity& b);

}  // namespace millrace
