// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiers/disk_tier.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "common/units.h"

namespace millrace::kvstore {
namespace {

std::string errno_text(int code) {
  return fmt::format("{} (errno {})", std::generic_category().message(code), code);
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::open(const std::string& directory, int64_t slot_bytes) {
  std::string path = directory + "/millrace-kv-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    return error(Errc::kIo, "cannot create the KV file in '{}': {}", directory, errno_text(errno));
  }
  unlink(path.c_str());
  return std::unique_ptr<DiskTier>(new DiskTier(directory, fd, slot_bytes));
}

DiskTier::~DiskTier() {
  close(fd_);
}

Result<void> DiskTier::resize(int64_t num_slots) {
  const int64_t old_bytes = num_slots_ * slot_bytes_;
  const int64_t new_bytes = num_slots * slot_bytes_;
  if (new_bytes > old_bytes) {
    MR_RETURN_IF_ERROR(allocate(old_bytes, new_bytes));
  } else if (ftruncate(fd_, new_bytes) != 0) {
    return error(Errc::kIo, "truncating the KV file in '{}' from {} to {}: {}", directory_,
                 format_bytes(old_bytes), format_bytes(new_bytes), errno_text(errno));
  }
  num_slots_ = num_slots;
  return {};
}

// posix_fallocate also serves file systems without fallocate, by writing.
Result<void> DiskTier::allocate(int64_t from_bytes, int64_t to_bytes) {
  int code = 0;
  do {
    code = posix_fallocate(fd_, from_bytes, to_bytes - from_bytes);
  } while (code == EINTR);
  if (code == 0) return {};
  // A failed allocation may have taken part of the room; the caller's error matters, not this one.
  if (ftruncate(fd_, from_bytes) != 0) errno = 0;
  return error(Errc::kIo, "growing the KV file in '{}' from {} to {}: {}", directory_,
               format_bytes(from_bytes), format_bytes(to_bytes), errno_text(code));
}

Result<void> DiskTier::write(int64_t slot, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const auto offset = static_cast<off_t>(slot * slot_bytes_ + static_cast<int64_t>(done));
    const ssize_t n = pwrite(fd_, bytes.data() + done, bytes.size() - done, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return error(Errc::kIo, "writing slot {} of the KV file in '{}': {} of {} bytes: {}", slot,
                   directory_, done, bytes.size(), errno_text(n < 0 ? errno : ENOSPC));
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<void> DiskTier::read(int64_t slot, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const auto offset = static_cast<off_t>(slot * slot_bytes_ + static_cast<int64_t>(done));
    const ssize_t n = pread(fd_, bytes.data() + done, bytes.size() - done, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return error(Errc::kIo, "reading slot {} of the KV file in '{}': {} of {} bytes: {}", slot,
                   directory_, done, bytes.size(), n < 0 ? errno_text(errno) : "end of file");
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace millrace::kvstore
