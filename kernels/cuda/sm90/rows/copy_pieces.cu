// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Bytes that one thread block moves: enough to have all of its loads in flight, few enough that a
// piece of a short prompt still spreads over the GPU.
constexpr int64_t kChunkBytes = 32 << 10;

struct Planes {
  char* destination;
  const char* source;
  int64_t destination_plane_bytes;
  int64_t source_plane_bytes;
};

template <typename Word>
__device__ void copy_words(char* to, const char* from, int64_t bytes) {
  const int64_t count = bytes / int64_t{sizeof(Word)};
  auto* words_to = reinterpret_cast<Word*>(to);
  const auto* words_from = reinterpret_cast<const Word*>(from);
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < count; i += kThreads) words_to[i] = words_from[i];
}

// For a million tokens on four GPUs, the last row tile of all ranks has some 16 pieces: stripes of
// 2,304 tokens, tiles of 8,192 rows. Shorter prompts have shorter stripes, and more of them in a
// tile.
constexpr size_t kFewPieces = 32;
using FewPieces = std::array<CopyPiece, kFewPieces>;

// Grid: chunks of the longest piece, pieces, planes. Pieces: FewPieces, which are kernel
// parameters, or an address in device memory.
template <typename Pieces>
__global__ void copy_pieces_kernel(const __grid_constant__ Pieces pieces, Planes planes) {
  const CopyPiece piece = pieces[blockIdx.y];
  const int64_t first = int64_t{blockIdx.x} * kChunkBytes;
  if (first >= piece.bytes) return;
  const int64_t bytes = min(kChunkBytes, piece.bytes - first);
  char* to =
      planes.destination + blockIdx.z * planes.destination_plane_bytes + piece.destination + first;
  const char* from = planes.source + blockIdx.z * planes.source_plane_bytes + piece.source + first;
  const auto misaligned = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                           static_cast<uintptr_t>(bytes)) %
                          sizeof(uint4);
  if (misaligned == 0) {
    copy_words<uint4>(to, from, bytes);
  } else {
    copy_words<uint32_t>(to, from, bytes);
  }
}

constexpr size_t kMaxPiecesALaunch = 65535;  // a grid's second dimension

}  // namespace

void copy_pieces(const CopyPiecesParams& params, Context& context) {
  int64_t longest = 0;
  for (const auto& piece : params.pieces) {
    MR_CHECK((piece.destination | piece.source | piece.bytes) % kPieceAlignment == 0,
             "a piece of {} bytes from {} to {}", piece.bytes, piece.source, piece.destination);
    longest = std::max(longest, piece.bytes);
  }
  if (longest == 0 || params.num_planes == 0) return;
  const Planes planes{.destination = static_cast<char*>(params.destination),
                      .source = static_cast<const char*>(params.source),
                      .destination_plane_bytes = params.destination_plane_bytes,
                      .source_plane_bytes = params.source_plane_bytes};
  const auto grid = [&](size_t count) {
    return dim3(static_cast<unsigned>(ceil_div(longest, kChunkBytes)), static_cast<unsigned>(count),
                static_cast<unsigned>(params.num_planes));
  };
  const size_t num_pieces = params.pieces.size();
  if (num_pieces <= kFewPieces) {
    FewPieces pieces{};
    std::ranges::copy(params.pieces, pieces.begin());
    copy_pieces_kernel<<<grid(num_pieces), kThreads, 0, context.stream>>>(pieces, planes);
    MR_CUDA_CHECK_LAUNCH();
    return;
  }
  const CopyPiece* pieces = context.scratch.upload(params.pieces);
  for (size_t first = 0; first < num_pieces; first += kMaxPiecesALaunch) {
    copy_pieces_kernel<<<grid(std::min(kMaxPiecesALaunch, num_pieces - first)), kThreads, 0,
                         context.stream>>>(pieces + first, planes);
    MR_CUDA_CHECK_LAUNCH();
  }
}

}  // namespace millrace::kernels::cuda
