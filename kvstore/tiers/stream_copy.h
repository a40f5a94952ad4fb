// Copies bytes that nobody reads soon. They go past the caches: their destination is not fetched
// from memory only to be overwritten, and what is in use is not pushed out.
#pragma once

#include <cstddef>

namespace millrace::kvstore {

// The ranges do not overlap. The bytes are there for whoever synchronises with the caller, as after
// memcpy.
void stream_copy(std::byte* destination, const std::byte* source, size_t bytes);

}  // namespace millrace::kvstore
