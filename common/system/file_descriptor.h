// SPDX-License-Identifier: Apache-2.0
// Owner of a file descriptor, and how many a process may have.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

namespace millrace {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // -1: none.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Raises the soft limit of open files to the hard one, since a soft limit is often 1024 for the sake
// of programs that use select(). Returns how many descriptors this process may have now.
int64_t raise_descriptor_limit();

}  // namespace millrace
