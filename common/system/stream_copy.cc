// SPDX-License-Identifier: Apache-2.0
#include "common/system/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Sanitizers do not see what these stores write.
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MR_STREAMING_STORES 1
#include <emmintrin.h>
#endif

namespace millrace {

namespace {

#if MR_STREAMING_STORES

void copy(std::byte* destination, const std::byte* source, size_t bytes) {
  constexpr size_t kVector = sizeof(__m128i);
  constexpr size_t kLine = 64;  // written whole, otherwise memory is read after all
  const size_t to_line = (kLine - reinterpret_cast<uintptr_t>(destination) % kLine) % kLine;
  const size_t head = std::min(bytes, to_line);
  std::memcpy(destination, source, head);
  size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + done);
    auto* to = reinterpret_cast<__m128i*>(destination + done);
    for (size_t i = 0; i < kLine / kVector; ++i) {
      _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
    }
  }
  std::memcpy(destination + done, source + done, bytes - done);
}

// These stores are not ordered before a later unlock by themselves.
void fence() {
  _mm_sfence();
}

#else

void copy(std::byte* destination, const std::byte* source, size_t bytes) {
  std::memcpy(destination, source, bytes);
}

void fence() {}

#endif

}  // namespace

void stream_copy(std::byte* destination, const std::byte* source, size_t bytes) {
  copy(destination, source, bytes);
  fence();
}

void stream_copy(std::span<const std::span<std::byte>> pieces, const std::byte* source) {
  for (const auto piece : pieces) {
    copy(piece.data(), source, piece.size());
    source += piece.size();
  }
  fence();
}

}  // namespace millrace
