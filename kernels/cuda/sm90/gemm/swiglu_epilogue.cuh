// SPDX-License-Identifier: Apache-2.0
// Applies a gated MLP's activation to gate and up at the end of a tile: a thread has both in
// registers of its own.
#pragma once

#include <type_traits>

#include "common/float8.h"
#include "kernels/api/activation.h"
#include "kernels/cuda/sm90/gemm/tile_product.cuh"

namespace millrace::kernels::cuda {

// -inf gives NaN, as x / (1 + exp(-x)) does in any precision.
__device__ inline float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

// gelu in the tanh approximation: tanh(z) = 2 / (1 + exp(-2 z)) - 1, as on a CPU
// (kernels/cpu/rows). -inf gives NaN here, too.
__device__ inline float gelu_tanh(float x) {
  constexpr float kTwoRootTwoOverPi = 1.59576912F;  // 2 sqrt(2 / pi)
  return __fdividef(x, 1.0f + __expf(-kTwoRootTwoOverPi * (x + 0.044715F * x * x * x)));
}

// Activation::kClamped. It uses comparisons, so that NaN stays NaN.
__device__ inline float clamped_glu(float gate, float up, const Activation& activation) {
  const float limit = activation.limit;
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : up < -limit ? -limit : up;
  return __fdividef(g, 1.0f + __expf(-activation.alpha * g)) * (u + 1.0f);
}

// FactorType is the type of the factors, Element that of the output. Sums of 8-bit floats are
// scaled first. kKind is the activation, kSilu or kGeluTanh. kBiased: the parameters may have a
// bias, and kClamped in place of kSilu; all threads check for these once per tile. Without kBiased
// this code is left out.
template <typename FactorType, typename Element, Activation::Kind kKind = Activation::Kind::kSilu,
          bool kBiased = false>
struct SwigluEpilogue {
  using Factor = FactorType;
  static constexpr int kMatrices = 2;
  static constexpr int kColumns = kHalfColumns;

  struct Params {
    int rows;  // of the output
    int columns;
    const float* row_scales;     // [rows], only for float8
    const float* weight_scales;  // [matrices, 2 columns]
    const float* bias;           // the same, or null; `columns` is then even
    Activation activation = {};  // read if kBiased: kSilu or kClamped
  };

  __device__ static void finish(float (&sums)[kSums], std::byte (&panels)[kPanels][kPanelBytes],
                                int warpgroup, int row, int column, int matrix,
                                const Params& params, const CUtensorMap& out_map) {
    if constexpr (std::is_same_v<Factor, Float8>) scale(sums, row, column, matrix, params);
    if constexpr (kBiased) {
      if (params.bias != nullptr) add_bias(sums, column, matrix, params);
    }
    if (thread() == 0) ptx::wait_for_stores_to_read();  // of the previous tile
    ptx::synchronise_warpgroup(warpgroup);
    if (kBiased && params.activation.kind == Activation::Kind::kClamped) {
      activate(sums, panels,
               [&](float gate, float up) { return clamped_glu(gate, up, params.activation); });
    } else {
      activate(sums, panels, [](float gate, float up) {
        return (kKind == Activation::Kind::kGeluTanh ? gelu_tanh(gate) : silu(gate)) * up;
      });
    }
    ptx::fence_async_shared();
    ptx::synchronise_warpgroup(warpgroup);
    if (thread() != 0) return;
#pragma unroll
    for (int panel = 0; panel < kColumns / kPanelColumns; ++panel) {
      ptx::store_box(out_map, column + panel * kPanelColumns, row, 0,
                     ptx::shared_address(panels[panel]));
    }
    ptx::commit_stores();
  }

 private:
  static constexpr int kGates = kSums / 2;  // per thread, followed by as many ups
  static_assert(kColumns == kPanels * kPanelColumns);
  static_assert(kKind == Activation::Kind::kSilu ||
                (kKind == Activation::Kind::kGeluTanh && !kBiased));

  __device__ static int thread() {
    return static_cast<int>(threadIdx.x) % kWarpgroup;
  }

  __device__ static void scale(float (&sums)[kSums], int row, int column, int matrix,
                               const Params& params) {
    const int first_row = row + thread() / kWarp * 16 + thread() % kWarp / 4;
    float row_scales[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_scales[half] = params.row_scales[min(first_row + 8 * half, params.rows - 1)];
    }
    const float* weight_scales = params.weight_scales + int64_t{matrix} * 2 * params.columns;
    const int first_column = column + thread() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int own = min(first_column + 8 * j + e, params.columns - 1);
        const float gate = weight_scales[own];
        const float up = weight_scales[params.columns + own];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sums[4 * j + 2 * half + e] *= row_scales[half] * gate;
          sums[kGates + 4 * j + 2 * half + e] *= row_scales[half] * up;
        }
      }
    }
  }

  // A pair of columns is either all inside a matrix or all outside.
  __device__ static void add_bias(float (&sums)[kSums], int column, int matrix,
                                  const Params& params) {
    const float* bias = params.bias + int64_t{matrix} * 2 * params.columns;
    const int first_column = column + thread() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int own = min(first_column + 8 * j, params.columns - 2);
      const float2 gate = *reinterpret_cast<const float2*>(bias + own);
      const float2 up = *reinterpret_cast<const float2*>(bias + params.columns + own);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[4 * j + 2 * half] += gate.x;
        sums[4 * j + 2 * half + 1] += gate.y;
        sums[kGates + 4 * j + 2 * half] += up.x;
        sums[kGates + 4 * j + 2 * half + 1] += up.y;
      }
    }
  }

  // Writes to shared memory.
  template <typename Activate>
  __device__ static void activate(const float (&sums)[kSums],
                                  std::byte (&panels)[kPanels][kPanelBytes],
                                  const Activate& activated) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* gate = sums + 4 * j + 2 * half;
        const float* up = gate + kGates;
        panel_place(panels[j / 8], j % 8, half) =
            ptx::pack_finite<Element>(activated(gate[0], up[0]), activated(gate[1], up[1]));
      }
    }
  }
};

}  // namespace millrace::kernels::cuda
