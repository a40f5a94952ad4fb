// SPDX-License-Identifier: Apache-2.0
// Copies bytes that will not be read soon. They bypass the caches: their destination is not fetched
// from memory only to be overwritten, and data in use is not evicted.
#pragma once

#include <cstddef>
#include <span>

namespace millrace {

// The ranges must not overlap. The bytes are visible to whoever synchronises with the caller, as
// after memcpy.
void stream_copy(std::byte* destination, const std::byte* source, size_t bytes);
// To pieces of memory one after the other, as many bytes as they hold.
void stream_copy(std::span<const std::span<std::byte>> pieces, const std::byte* source);

}  // namespace millrace
