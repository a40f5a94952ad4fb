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
  if (size == 0) {
    ::close(fd);
    return MappedFile(path, {});
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int map_errno = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    errno = map_errno;
    return errno_error(path, "mmap");
  }
  return MappedFile(path, {static_cast<const std::byte*>(data), size});
}

MappedFile::MappedFile(std::string path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {}
MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  MR_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const auto size = static_cast<int64_t>(file.bytes().size());
  if (size > max_bytes) {
    return error(Errc::kTooLarge, "{}: {} bytes, limit {}", path, size, max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace millrace
