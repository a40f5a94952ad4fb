// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/gemm/grouped_products.h"

#include "common/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/gemm/swiglu_epilogue.cuh"

namespace millrace::kernels::cuda {
namespace {

// Writes the sums in 16 bits, those of 8-bit floats after scaling. A panel of columns is filled
// while the one before is being stored.
template <typename FactorType, typename Element>
struct PlainEpilogue {
  using Factor = FactorType;
  static constexpr int kMatrices = 1;
  static constexpr int kColumns = 2 * kHalfColumns;

  struct Params {
    int rows;  // of the output
    int columns;
    const float* row_scales;     // [rows], only for float8
    const float* weight_scales;  // [matrices, columns]
    const float* bias;           // the same, or null, as for float8; `columns` is then even
  };

  __device__ static void finish(float (&sums)[kSums], std::byte (&panels)[kPanels][kPanelBytes],
                                int warpgroup, int row, int column, int matrix,
                                const Params& params, const CUtensorMap& out_map) {
    if constexpr (std::is_same_v<Factor, Float8>) {
      scale(sums, row, column, matrix, params);
    } else if (params.bias != nullptr) {
      add_bias(sums, column, matrix, params);
    }
    const bool first_thread = thread() == 0;
#pragma unroll
    for (int part = 0; part < kColumns / kPanelColumns; ++part) {
      std::byte* panel = panels[part % kPanels];
      if (first_thread) ptx::wait_for_stores_to_read<kPanels - 1>();
      ptx::synchronise_warpgroup(warpgroup);
#pragma unroll
      for (int j = 0; j < kPanelColumns / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* pair = sums + (part * kPanelColumns / 8 + j) * 4 + 2 * half;
          panel_place(panel, j, half) = ptx::pack_finite<Element>(pair[0], pair[1]);
        }
      }
      ptx::fence_async_shared();
      ptx::synchronise_warpgroup(warpgroup);
      if (!first_thread) continue;
      ptx::store_box(out_map, column + part * kPanelColumns, row, 0, ptx::shared_address(panel));
      ptx::commit_stores();
    }
  }

 private:
  __device__ static int thread() {
    return static_cast<int>(threadIdx.x) % kWarpgroup;
  }

  // The number of columns is even, so a pair of columns is either all inside a matrix or all
  // outside.
  __device__ static void scale(float (&sums)[kSums], int row, int column, int matrix,
                               const Params& params) {
    const int first_row = row + thread() / kWarp * 16 + thread() % kWarp / 4;
    float row_scales[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_scales[half] = params.row_scales[min(first_row + 8 * half, params.rows - 1)];
    }
    const float* weight_scales = params.weight_scales + int64_t{matrix} * params.columns;
    const int first_column = column + thread() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int own = min(first_column + 8 * j, params.columns - 2);
      const float2 pair = *reinterpret_cast<const float2*>(weight_scales + own);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[4 * j + 2 * half] *= row_scales[half] * pair.x;
        sums[4 * j + 2 * half + 1] *= row_scales[half] * pair.y;
      }
    }
  }

  // The number of columns is even here, too.
  __device__ static void add_bias(float (&sums)[kSums], int column, int matrix,
                                  const Params& params) {
    const float* bias = params.bias + int64_t{matrix} * params.columns;
    const int first_column = column + thread() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int own = min(first_column + 8 * j, params.columns - 2);
      const float2 pair = *reinterpret_cast<const float2*>(bias + own);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[4 * j + 2 * half] += pair.x;
        sums[4 * j + 2 * half + 1] += pair.y;
      }
    }
  }
};

bool fits(const GroupedParams& p) {
  return p.a.dtype == p.weights.dtype && p.a.dtype == p.out.dtype &&
         (p.bias == nullptr || p.out.cols % 2 == 0);
}
// The widths that the copy engine and PlainEpilogue::scale support.
bool fits(const Float8GroupedParams& p) {
  return p.out.dtype == DType::kBFloat16 && p.a.cols % kFloat8WidthStep == 0 &&
         p.a.row_stride % kFloat8WidthStep == 0 && p.weights.row_stride % kFloat8WidthStep == 0 &&
         p.out.cols % 2 == 0;
}

const float* scales_of(const ConstMatrix&) {
  return nullptr;
}
const float* scales_of(const ConstFloat8Matrix& matrix) {
  return matrix.scales;
}

const float* bias_of(const GroupedParams& p) {
  return p.bias;
}
const float* bias_of(const Float8GroupedParams&) {
  return nullptr;
}

Activation activation_of(const GroupedParams& p) {
  return p.activation;
}
Activation activation_of(const Float8GroupedParams&) {
  return {};
}

template <typename Epilogue, typename Params>
typename Epilogue::Params epilogue_params(const Params& p) {
  typename Epilogue::Params params{.rows = static_cast<int>(p.out.rows),
                                   .columns = static_cast<int>(p.out.cols),
                                   .row_scales = scales_of(p.a),
                                   .weight_scales = scales_of(p.weights),
                                   .bias = bias_of(p)};
  if constexpr (Epilogue::kMatrices == 2) params.activation = activation_of(p);
  return params;
}

// GroupedParams or Float8GroupedParams.
template <typename Epilogue, typename Params>
void launch(const Params& p, Context& context) {
  const auto num_planes = static_cast<int>(p.num_matrices * Epilogue::kMatrices);
  const int64_t width = p.out.cols;
  MR_CHECK(fits(p) && p.a.rows == p.out.rows && p.a.cols == p.weights.cols &&
               p.weights.rows == num_planes * width,
           "grouped products: {} of {} x {}, rows {} x {}, out {} x {} of {}", p.num_matrices,
           p.weights.rows, p.weights.cols, p.a.rows, p.a.cols, p.out.rows, width,
           dtype_name(p.out.dtype));
  MR_CHECK(p.tiles.tile_columns == Epilogue::kColumns && p.a.rows % kGroupedRowStep == 0,
           "grouped products: tiles of {} columns, {} rows", p.tiles.tile_columns, p.a.rows);
  using Tiles = GroupedTiles<Epilogue::kColumns>;
  launch_tile_product<Epilogue>(Tiles{.tiles = p.tiles.tiles, .num_tiles = p.tiles.num_tiles},
                                p.tiles.max_tiles, p.a.cols, epilogue_params<Epilogue>(p),
                                {.a = matrix_tensor_map(p.a, 1, Tiles::kBoxRows),
                                 .weights = matrix_tensor_map(p.weights, num_planes, kHalfColumns),
                                 .out = matrix_tensor_map(ConstMatrix(p.out), 1, kMultiplierRows)},
                                context);
}

}  // namespace

void grouped_swiglu(const GroupedParams& params, Context& context) {
  dispatch_narrow_dtype(params.a.dtype, [&]<typename Element>(Element) {
    using Epilogue = SwigluEpilogue<Element, Element, Activation::Kind::kSilu, /*kBiased=*/true>;
    static_assert(Epilogue::kColumns == kGroupedSwigluColumns);
    launch<Epilogue>(params, context);
  });
}

void grouped_swiglu(const Float8GroupedParams& params, Context& context) {
  launch<SwigluEpilogue<Float8, BFloat16>>(params, context);
}

void grouped_product(const GroupedParams& params, Context& context) {
  dispatch_narrow_dtype(params.a.dtype, [&]<typename Element>(Element) {
    static_assert(PlainEpilogue<Element, Element>::kColumns == kGroupedProductColumns);
    launch<PlainEpilogue<Element, Element>>(params, context);
  });
}

void grouped_product(const Float8GroupedParams& params, Context& context) {
  launch<PlainEpilogue<Float8, BFloat16>>(params, context);
}

}  // namespace millrace::kernels::cuda
