#include "kernels/cuda/sm90/gemm/grouped_products.h"

#include "common/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/gemm/swiglu_epilogue.cuh"

namespace millrace::kernels::cuda {
namespace {

// The sums as they are, in 16 bits: a panel of columns is written while the one before leaves.
template <typename Element>
struct PlainEpilogue {
  using Factor = Element;
  static constexpr int kMatrices = 1;
  static constexpr int kColumns = 2 * kHalfColumns;
  struct Params {};

  __device__ static void finish(float (&sums)[kSums], std::byte (&panels)[kPanels][kPanelBytes],
                                int warpgroup, int row, int column, const Params& /*params*/,
                                const CUtensorMap& out_map) {
    const bool first_thread = threadIdx.x % kWarpgroup == 0;
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
};

template <typename Epilogue>
void launch(const GroupedParams& p, Context& context) {
  const auto num_planes = static_cast<int>(p.num_matrices * Epilogue::kMatrices);
  const int64_t width = p.out.cols;
  MR_CHECK(p.a.dtype == p.weights.dtype && p.a.dtype == p.out.dtype && p.a.rows == p.out.rows &&
               p.a.cols == p.weights.cols && p.weights.rows == num_planes * width,
           "grouped products: {} of {} x {}, rows {} x {}, out {} x {}", p.num_matrices,
           p.weights.rows, p.weights.cols, p.a.rows, p.a.cols, p.out.rows, width);
  MR_CHECK(p.tiles.tile_columns == Epilogue::kColumns && p.a.rows % kGroupedRowStep == 0,
           "grouped products: tiles of {} columns, {} rows", p.tiles.tile_columns, p.a.rows);
  using Tiles = GroupedTiles<Epilogue::kColumns>;
  launch_tile_product<Epilogue>(Tiles{.tiles = p.tiles.tiles, .num_tiles = p.tiles.num_tiles},
                                p.tiles.max_tiles, p.a.cols, typename Epilogue::Params{},
                                {.a = matrix_tensor_map(p.a, 1, Tiles::kBoxRows),
                                 .weights = matrix_tensor_map(p.weights, num_planes, kHalfColumns),
                                 .out = matrix_tensor_map(ConstMatrix(p.out), 1, kMultiplierRows)},
                                context);
}

}  // namespace

void grouped_swiglu(const GroupedParams& params, Context& context) {
  dispatch_narrow_dtype(params.a.dtype, [&]<typename Element>(Element) {
    static_assert(SwigluEpilogue<Element, Element>::kColumns == kGroupedSwigluColumns);
    launch<SwigluEpilogue<Element, Element>>(params, context);
  });
}

void grouped_product(const GroupedParams& params, Context& context) {
  dispatch_narrow_dtype(params.a.dtype, [&]<typename Element>(Element) {
    static_assert(PlainEpilogue<Element>::kColumns == kGroupedProductColumns);
    launch<PlainEpilogue<Element>>(params, context);
  });
}

}  // namespace millrace::kernels::cuda
