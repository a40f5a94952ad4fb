// SPDX-License-Identifier: Apache-2.0
#include "common/system/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace millrace {

namespace {
Error errno_error(const std::string& path, const char* what) {
  const Errc code = errno == ENOENT ? Errc::kNotFound : Errc::kIo;
  return Error(code, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}
}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block
  if (fd < 0) return errno_error(path, "open");
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return error(Errc::kIo, "{}: not a regular file", path);
  }
  const auto size = static_cast<size_t>(status.st_size);
  const auto identity = file_identity(status);
  if (size == 0) {
    ::close(fd);
    return MappedFile(path, identity, {});
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int map_errno = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    errno = map_errno;
    return errno_error(path, "mmap");
  }
  return MappedFile(path, identity, {static_cast<const std::byte*>(data), size});
}

MappedFile::MappedFile(std::string path, FileIdentity identity, std::span<const std::byte> bytes)
    : path_(std::move(path)), identity_(identity), bytes_(bytes), guard_(bytes) {}
MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      identity_(other.identity_),
      bytes_(std::exchange(other.bytes_, {})),
      guard_(std::move(other.guard_)) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(identity_, other.identity_);
  std::swap(bytes_, other.bytes_);
  std::swap(guard_, other.guard_);
  return *this;
}
MappedFile::~MappedFile() {
  guard_ = {};
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<void> MappedFile::unchanged() const {
  const auto now = file_identity(path_);
  if (!torn() && now.ok() && same_contents(*now, identity_)) return {};
  return error(Errc::kIo, "{}: changed while it was read", path_);
}

Result<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  MR_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size > max_bytes) {
    return error(Errc::kTooLarge, "{}: {} bytes, limit {}", path, size, max_bytes);
  }
  std::string text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (file.torn()) return error(Errc::kIo, "{}: cut short while it was read", path);
  return text;
}

}  // namespace millrace
