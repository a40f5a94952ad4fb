// SPDX-License-Identifier: Apache-2.0
#include "common/system/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "common/checksum.h"

namespace millrace {

namespace {

struct Head {
  uint32_t length = 0;
  uint64_t sum = 0;
};
constexpr size_t kHeadBytes = sizeof(uint32_t) + sizeof(uint64_t);

Error failed(const std::string& what, const std::string& path) {
  return error(Errc::kIo, "{} {}: {}", what, path, std::generic_category().message(errno));
}

uint64_t checksum_of(std::string_view body) {
  return checksum(std::as_bytes(std::span(body)));
}

std::string encode(std::span<const std::string> bodies) {
  size_t total = 0;
  for (const auto& body : bodies) total += kHeadBytes + body.size();
  std::string bytes;
  bytes.reserve(total);
  for (const auto& body : bodies) {
    const auto length = static_cast<uint32_t>(body.size());
    const uint64_t sum = checksum_of(body);
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    bytes += body;
  }
  return bytes;
}

// The caller must know that there are enough bytes.
Head head_of(std::string_view bytes) {
  Head head;
  std::memcpy(&head.length, bytes.data(), sizeof head.length);
  std::memcpy(&head.sum, bytes.data() + sizeof head.length, sizeof head.sum);
  return head;
}

Result<void> write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("writing", path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Result<FileDescriptor> open_file(const std::string& path, int flags) {
  FileDescriptor file(::open(path.c_str(),
                             O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | flags,
                             S_IRUSR | S_IWUSR));
  if (!file.valid()) return failed("opening", path);
  return file;
}

}  // namespace

Result<RecordFile> RecordFile::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto file, open_file(path, 0));
  return RecordFile(path, std::move(file));
}

Result<void> RecordFile::read(int64_t most_bytes, const Visit& visit) const {
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) return failed("reading", path_);
  if (status.st_size > most_bytes) return {};
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        pread(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("reading", path_);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  std::string_view rest(bytes.data(), done);
  while (rest.size() >= kHeadBytes) {
    const Head head = head_of(rest);
    rest.remove_prefix(kHeadBytes);
    if (rest.size() < head.length) break;
    const auto body = rest.substr(0, head.length);
    if (checksum_of(body) == head.sum) visit(body);
    rest.remove_prefix(head.length);
  }
  return {};
}

Result<void> RecordFile::append(std::span<const std::string> bodies) {
  const std::string bytes = encode(bodies);
  bytes_written_ += std::ssize(bytes);
  return write_all(file_.get(), bytes, path_);
}

Result<void> RecordFile::replace(std::span<const std::string> bodies) {
  const std::string beside = path_ + ".new";
  MR_ASSIGN_OR_RETURN(auto file, open_file(beside, O_TRUNC));
  const std::string bytes = encode(bodies);
  MR_RETURN_IF_ERROR(write_all(file.get(), bytes, beside));
  if (std::rename(beside.c_str(), path_.c_str()) != 0) return failed("renaming", beside);
  file_ = std::move(file);
  bytes_written_ = std::ssize(bytes);
  return {};
}

}  // namespace millrace
