// SPDX-License-Identifier: Apache-2.0
// SharedMemory of another process, mapped for reading. It stays valid when that process ends.
#pragma once

#include <cstddef>
#include <span>

#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace {

class SharedMemoryView {
 public:
  // kInvalidArgument for anything but a memfd sealed against shrinking: if it were cut short during
  // a read, this process would end (SIGBUS). kExhausted.
  static Result<SharedMemoryView> map(const FileDescriptor& descriptor);
  SharedMemoryView(SharedMemoryView&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  SharedMemoryView& operator=(SharedMemoryView&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMemoryView();

  // Their owner may write them at any time.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit SharedMemoryView(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace millrace
