// SPDX-License-Identifier: Apache-2.0
// Copies many pieces of device memory in one launch, where single copies would be thousands of launches.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::kernels {

// All three are multiples of kPieceAlignment.
struct CopyPiece {
  int64_t destination = 0;  // bytes from CopyPiecesParams::destination
  int64_t source = 0;       // bytes from CopyPiecesParams::source
  int64_t bytes = 0;
};

inline constexpr int64_t kPieceAlignment = 4;

// The pieces of plane p go from source + p * source_plane_bytes to destination + p *
// destination_plane_bytes. Source and destination do not overlap.
struct CopyPiecesParams {
  void* destination = nullptr;
  int64_t destination_plane_bytes = 0;
  const void* source = nullptr;
  int64_t source_plane_bytes = 0;
  int64_t num_planes = 1;
  std::span<const CopyPiece> pieces;
};

// The same between host addresses.
void copy_host_pieces(const CopyPiecesParams& params);

}  // namespace millrace::kernels
