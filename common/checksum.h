// SPDX-License-Identifier: Apache-2.0
// The checksum of a page: XXH3, 64 bits. Chosen over crc32c because it runs at memory speed without
// special instructions (bench/kvstore), and because at 2^-64 the number of pages does not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

uint64_t checksum(std::span<const std::byte> bytes);
// Of pieces, as if they were contiguous.
uint64_t checksum(std::span<const std::span<std::byte>> pieces);

}  // namespace millrace
