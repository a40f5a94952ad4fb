// SPDX-License-Identifier: Apache-2.0
// Owner of uninitialised host memory, aligned to 64 bytes. Large buffers are aligned to huge pages
// and ask for them, because new memory otherwise costs a page fault for every 4 KiB. Throws
// std::bad_alloc as containers do.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace millrace {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t num_bytes) : bytes_(num_bytes) {
    if (num_bytes == 0) return;
    const bool large = num_bytes >= kLargeBytes;
    const size_t alignment = large ? kHugePageBytes : 64;
    const auto rounded = (static_cast<size_t>(num_bytes) + alignment - 1) / alignment * alignment;
    data_ = std::aligned_alloc(alignment, rounded);
    if (data_ == nullptr) throw std::bad_alloc();
    if (large) madvise(data_, rounded, MADV_HUGEPAGE);  // a kernel without them just says no
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() { std::free(data_); }

  int64_t bytes() const { return bytes_; }
  void* data() { return data_; }
  const void* data() const { return data_; }
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;
  static constexpr int64_t kLargeBytes = int64_t{16} << 20;  // a huge page is a small part of it

  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace millrace
