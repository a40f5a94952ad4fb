// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/float8/kv_float8.h"

#include <algorithm>
#include <array>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// Elements that are widened to float32 at a time, so that they stay in the first-level cache.
constexpr int64_t kTile = 1024;
constexpr float kLargestFloat16 = 65504;

// Calls body(plane, first, count) for tiles of all planes.
template <typename Body>
void for_tiles(int64_t num_planes, int64_t count, const Context& context, const Body& body) {
  const int64_t tiles = ceil_div(count, kTile);
  // Some 32 tiles take as long as a parallel region costs to start.
  const int64_t threads = std::min<int64_t>(context.num_threads, num_planes * tiles / 32 + 1);
  parallel_ranges(num_planes * tiles, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % tiles * kTile;
      body(i / tiles, first, std::min(kTile, count - first));
    }
  });
}

}  // namespace

void float8_encode(const Float8EncodeParams& params, const Context& context) {
  MR_CHECK(params.kept == nullptr || params.num_planes == 1, "float8_encode keeps {} planes",
           params.num_planes);
  const RowKernels& kernels = row_kernels(context.simd);
  for_tiles(params.num_planes, params.count, context, [&](int64_t plane, int64_t first, int64_t n) {
    const int64_t at = plane * params.x_stride + first;
    Float8* codes = params.codes + plane * params.codes_stride + first;
    std::array<float, kTile> wide;
    const float* x = wide.data();
    switch (params.dtype) {
      case DType::kFloat32:
        x = static_cast<const float*>(params.x) + at;
        break;
      case DType::kBFloat16:
        kernels.widen_bf16(static_cast<const BFloat16*>(params.x) + at, n, wide.data());
        break;
      case DType::kFloat16:
        kernels.widen_f16(static_cast<const Float16*>(params.x) + at, n, wide.data());
        break;
    }
    kernels.encode_float8(x, n, params.scale, codes);
    if (params.kept != nullptr) {
      kernels.decode_float8(codes, n, params.scale, params.kept + first);
    }
  });
}

void float8_decode(const Float8DecodeParams& params, const Context& context) {
  const RowKernels& kernels = row_kernels(context.simd);
  for_tiles(params.num_planes, params.count, context, [&](int64_t plane, int64_t first, int64_t n) {
    const Float8* codes = params.codes + plane * params.codes_stride + first;
    const int64_t at = plane * params.x_stride + first;
    std::array<float, kTile> wide;
    switch (params.dtype) {
      case DType::kFloat32:
        kernels.decode_float8(codes, n, params.scale, static_cast<float*>(params.x) + at);
        break;
      case DType::kBFloat16:
        kernels.decode_float8(codes, n, params.scale, wide.data());
        kernels.narrow_bf16(wide.data(), n, static_cast<BFloat16*>(params.x) + at);
        break;
      case DType::kFloat16: {
        auto* to = static_cast<Float16*>(params.x) + at;
        kernels.decode_float8(codes, n, params.scale, wide.data());
        for (int64_t e = 0; e < n; ++e) {
          to[e] = to_float16(
              std::clamp(wide[static_cast<size_t>(e)], -kLargestFloat16, kLargestFloat16));
        }
        break;
      }
    }
  });
}

}  // namespace millrace::kernels::cpu
