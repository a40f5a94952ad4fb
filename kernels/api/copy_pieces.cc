// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/copy_pieces.h"

#include <cstddef>
#include <cstring>

namespace millrace::kernels {

void copy_host_pieces(const CopyPiecesParams& params) {
  for (int64_t plane = 0; plane < params.num_planes; ++plane) {
    auto* to = static_cast<std::byte*>(params.destination) + plane * params.destination_plane_bytes;
    const auto* from =
        static_cast<const std::byte*>(params.source) + plane * params.source_plane_bytes;
    for (const auto& piece : params.pieces) {
      if (piece.bytes == 0) continue;  // neither address needs to be one
      std::memcpy(to + piece.destination, from + piece.source, static_cast<size_t>(piece.bytes));
    }
  }
}

}  // namespace millrace::kernels
