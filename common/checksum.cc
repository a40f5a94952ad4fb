// SPDX-License-Identifier: Apache-2.0
#include "common/checksum.h"

// Needed to have the state of a checksum on the stack.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#if MR_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // the calls below choose the widest vectors of the processor
#endif

namespace millrace {

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t checksum(std::span<const std::span<std::byte>> pieces) {
  if (pieces.size() == 1) return checksum(pieces.front());
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const auto piece : pieces) XXH3_64bits_update(&state, piece.data(), piece.size());
  return XXH3_64bits_digest(&state);
}

}  // namespace millrace
