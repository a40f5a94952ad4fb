// SPDX-License-Identifier: Apache-2.0
#include "common/system/file_identity.h"

#include <cerrno>
#include <cstring>

namespace millrace {

namespace {
int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}
}  // namespace

FileIdentity file_identity(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = status.st_size,
          .written_ns = nanoseconds(status.st_mtim),
          .changed_ns = nanoseconds(status.st_ctim)};
}

Result<FileIdentity> file_identity(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return file_identity(status);
  return error(errno == ENOENT ? Errc::kNotFound : Errc::kIo, "{}: {}", path, std::strerror(errno));
}

bool same_contents(const FileIdentity& a, const FileIdentity& b) {
  FileIdentity other = b;
  other.changed_ns = a.changed_ns;
  return a == other;
}

}  // namespace millrace
