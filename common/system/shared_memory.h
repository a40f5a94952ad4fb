// SPDX-License-Identifier: Apache-2.0
// Memory of this process that other processes can map, but can neither write nor resize: a sealed
// memfd. It has no name in any file system and is gone with the last process that has it, however
// that process ends.
//
// Whoever has the descriptor can read all of it. It uses huge pages if the system gives them to
// shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled). Parts become resident as they
// are touched, also by readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace {

class SharedMemory {
 public:
  // All zeros. kExhausted: the system has no room for it; kUnsupported: there is no memfd, or none
  // that can be sealed (Linux before 5.1, or forbidden).
  static Result<SharedMemory> create(int64_t num_bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  // To be sent to those who may read.
  int descriptor() const { return descriptor_.get(); }

 private:
  SharedMemory(FileDescriptor descriptor, std::span<std::byte> bytes)
      : descriptor_(std::move(descriptor)), bytes_(bytes) {}

  FileDescriptor descriptor_;
  std::span<std::byte> bytes_;
};

}  // namespace millrace
