// Copies bytes that nobody reads soon. They go past the caches: their destination is not fetched
// from memory only to be overwritten, and what is in use is not pushed out.
#pragma once

#include <cstddef>
#include <span>

namespace millrace {

// The ranges do not overlap. The bytes are there for whoever synchronises with the caller, as after
// memcpy.
void stream_copy(std::byte* destination, const std::byte* source, size_t bytes);
// To pieces of memory, one after the other, as many bytes as they have.
void stream_copy(std::span<const std::span<std::byte>> pieces, const std::byte* source);

}  // namespace millrace
