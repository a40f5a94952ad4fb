// SPDX-License-Identifier: Apache-2.0
// An output buffer with known bytes before it, after it and inside it, so that a test sees a write
// outside the range, or an element that was never written (it still reads as NaN).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::test {

template <typename T>
class GuardedBuffer {
 public:
  // On each side. Wider than the widest vector store. All ones is a NaN in float32 and bfloat16.
  static constexpr ptrdiff_t kGuardBytes = 128;

  explicit GuardedBuffer(int64_t count)
      : count_(static_cast<size_t>(count)),
        bytes_(count_ * sizeof(T) + 2 * kGuardBytes, std::byte{kPattern}) {}
  explicit GuardedBuffer(const std::vector<T>& values)
      : GuardedBuffer(static_cast<int64_t>(values.size())) {
    std::copy(values.begin(), values.end(), data());
  }

  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuardBytes); }
  std::span<T> span() { return {data(), count_}; }
  std::vector<T> values() { return {data(), data() + count_}; }

  bool guards_intact() const {
    const auto is_pattern = [](std::byte b) { return b == std::byte{kPattern}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes, is_pattern) &&
           std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_pattern);
  }

 private:
  static constexpr uint8_t kPattern = 0xff;

  size_t count_;
  std::vector<std::byte> bytes_;
};

}  // namespace millrace::test
