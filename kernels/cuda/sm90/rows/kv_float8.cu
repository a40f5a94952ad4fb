// SPDX-License-Identifier: Apache-2.0
// Encodes K and V as 8-bit floats under one scale, and decodes them. Memory-bound: a thread moves
// eight elements at a time. It divides by the scale rather than multiplying by its inverse, as the
// host does, to get the same bits.
#include <algorithm>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/float8.cuh"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxPlanes = 65535;  // a grid's second dimension

__device__ Vector8 decode8(const Float8* codes, float scale) {
  Vector8 v = load8(codes);
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] *= scale;
  return v;
}

// Grid: blocks of a plane, planes.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    encode_kernel(const Element* x, const Float8EncodeParams params) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kFloat8Step;
  if (i >= params.count) return;
  Vector8 v = load8(x + blockIdx.y * params.x_stride + i);
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = __fdiv_rn(v[e], params.scale);
  const uint2 codes =
      make_uint2(pack_float8(v[0], v[1], v[2], v[3]), pack_float8(v[4], v[5], v[6], v[7]));
  *reinterpret_cast<uint2*>(params.codes + blockIdx.y * params.codes_stride + i) = codes;
  if (params.kept == nullptr) return;
  store8(decode8(reinterpret_cast<const Float8*>(&codes), params.scale), params.kept + i);
}

template <typename Element>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(Element* x, const Float8DecodeParams params) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kFloat8Step;
  if (i >= params.count) return;
  const Float8* const codes = params.codes + blockIdx.y * params.codes_stride + i;
  store8(decode8(codes, params.scale), x + blockIdx.y * params.x_stride + i);
}

// Elements of a piece that a thread block decodes: some loads in flight for each thread.
constexpr int64_t kPieceTile = 4 * kThreads * kFloat8Step;

// Grid: tiles of the longest piece, pieces, planes.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    decode_pieces_kernel(Element* x, const Float8Piece* pieces,
                         const Float8DecodePiecesParams params) {
  const Float8Piece piece = pieces[blockIdx.y];
  const Float8* const codes = params.codes + blockIdx.z * params.codes_stride + piece.codes;
  Element* const to = x + blockIdx.z * params.x_stride + piece.x;
  const int64_t first = blockIdx.x * kPieceTile + threadIdx.x * kFloat8Step;
#pragma unroll
  for (int64_t at = 0; at < kPieceTile; at += kThreads * kFloat8Step) {
    if (first + at < piece.count)
      store8(decode8(codes + first + at, params.scale), to + first + at);
  }
}

dim3 grid_of(int64_t num_planes, int64_t count) {
  const int64_t blocks = ceil_div(count, int64_t{kThreads} * kFloat8Step);
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(num_planes)};
}

template <typename Params>
void check_planes(const Params& params, const char* operation) {
  MR_CHECK(
      params.num_planes <= kMaxPlanes && params.count % kFloat8Step == 0 &&
          params.x_stride % kFloat8Step == 0 && params.codes_stride % kFloat8Step == 0,
      "{}: {} planes of {} elements, {} and {} apart; all but the first must be multiples of {}",
      operation, params.num_planes, params.count, params.x_stride, params.codes_stride,
      kFloat8Step);
}

constexpr size_t kMaxPiecesALaunch = 65535;  // as kMaxPlanes

}  // namespace

void float8_encode(const Float8EncodeParams& params, Context& context) {
  check_planes(params, "float8_encode");
  MR_CHECK(params.kept == nullptr || params.num_planes == 1, "float8_encode keeps {} planes",
           params.num_planes);
  if (params.num_planes == 0 || params.count == 0) return;
  dispatch_dtype(params.dtype, [&]<typename Element>(Element) {
    encode_kernel<<<grid_of(params.num_planes, params.count), kThreads, 0, context.stream>>>(
        static_cast<const Element*>(params.x), params);
  });
  MR_CUDA_CHECK_LAUNCH();
}

void float8_decode(const Float8DecodeParams& params, Context& context) {
  check_planes(params, "float8_decode");
  if (params.num_planes == 0 || params.count == 0) return;
  dispatch_dtype(params.dtype, [&]<typename Element>(Element) {
    decode_kernel<<<grid_of(params.num_planes, params.count), kThreads, 0, context.stream>>>(
        static_cast<Element*>(params.x), params);
  });
  MR_CUDA_CHECK_LAUNCH();
}

void float8_decode_pieces(const Float8DecodePiecesParams& params, Context& context) {
  int64_t longest = 0;
  int64_t misaligned = params.codes_stride | params.x_stride;
  for (const Float8Piece& piece : params.pieces) {
    misaligned |= piece.codes | piece.x | piece.count;
    longest = std::max(longest, piece.count);
  }
  MR_CHECK(params.num_planes <= kMaxPlanes && misaligned % kFloat8Step == 0,
           "float8_decode_pieces: {} planes, {} and {} elements apart, or a piece of them, are not "
           "multiples of {}",
           params.num_planes, params.codes_stride, params.x_stride, kFloat8Step);
  if (longest == 0 || params.num_planes == 0) return;
  const Float8Piece* pieces = context.scratch.upload(params.pieces);
  for (size_t first = 0; first < params.pieces.size(); first += kMaxPiecesALaunch) {
    const size_t count = std::min(kMaxPiecesALaunch, params.pieces.size() - first);
    const dim3 grid(static_cast<unsigned>(ceil_div(longest, kPieceTile)),
                    static_cast<unsigned>(count), static_cast<unsigned>(params.num_planes));
    dispatch_dtype(params.dtype, [&]<typename Element>(Element) {
      decode_pieces_kernel<<<grid, kThreads, 0, context.stream>>>(static_cast<Element*>(params.x),
                                                                  pieces + first, params);
    });
    MR_CUDA_CHECK_LAUNCH();
  }
}

}  // namespace millrace::kernels::cuda
