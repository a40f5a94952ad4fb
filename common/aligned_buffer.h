// Owner of 64-byte aligned, uninitialised host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "common/check.h"

namespace millrace {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t num_bytes) : bytes_(num_bytes) {
    if (num_bytes == 0) return;
    const auto rounded = (static_cast<size_t>(num_bytes) + 63) / 64 * 64;
    data_ = std::aligned_alloc(64, rounded);
    MR_CHECK(data_ != nullptr, "out of memory: {} bytes", num_bytes);
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
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace millrace
