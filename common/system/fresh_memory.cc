// SPDX-License-Identifier: Apache-2.0
#include "common/system/fresh_memory.h"

#include <sys/mman.h>

#include <new>

namespace millrace {

FreshMemory::FreshMemory(int64_t num_bytes) {
  if (num_bytes == 0) return;
  // Populated, because all of it is about to be written, and a page fault for every 4 KiB would
  // cost more.
  void* const data = ::mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_ = data;
  bytes_ = num_bytes;
}

FreshMemory::~FreshMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace millrace
