// The checksum of a page: XXH3, 64 bits. Chosen over crc32c because it runs at memory speed without
// special instructions (bench/kvstore) and 2^-64 needs no thought about how many pages there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

uint64_t checksum(std::span<const std::byte> bytes);
// Of pieces, as if they lay one behind the other.
uint64_t checksum(std::span<const std::span<std::byte>> pieces);

}  // namespace millrace
