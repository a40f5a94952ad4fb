// Memory of this process that other processes can map, but neither write nor resize: a sealed
// memfd. It has no name in any file system and is gone with the last process that has it, however
// that ends.
//
// Who is given the descriptor can read all of it. Huge pages where the system gives them to shared
// memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled); parts become resident as they are
// touched, by readers too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "common/system/file_descriptor.h"

namespace millrace {

class SharedMemory {
 public:
  // All 0. kExhausted: the system has no room for it; kUnsupported: no memfd, or one that cannot be
  // sealed (Linux before 5.1, or forbidden).
  static Result<SharedMemory> create(int64_t num_bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  // To be sent to who may read.
  int descriptor() const { return descriptor_.get(); }

 private:
  SharedMemory(FileDescriptor descriptor, std::span<std::byte> bytes)
      : descriptor_(std::move(descriptor)), bytes_(bytes) {}

  FileDescriptor descriptor_;
  std::span<std::byte> bytes_;
};

}  // namespace millrace
