// silu(a gate^T) * (a up^T) in one kernel: neither product is ever in memory.
//
// A persistent grid. A cluster of two thread blocks computes 256 rows by 128 columns of the output,
// each block half of the rows. In a block one thread brings tiles of A, of gate and of up, and two
// warpgroups multiply 64 rows each with both, so that a thread has a gate and its up in registers
// of its own. Both blocks of a cluster want the same gate and up: each brings one of them for both.
//
// The sums of an element's products have the same order however many rows there are.
//
// Of 8-bit floats a step has twice the columns, and the sums are scaled before they are activated.

#include <cuda.h>

#include <algorithm>
#include <type_traits>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/ptx/barrier.cuh"
#include "kernels/cuda/sm90/ptx/cluster.cuh"
#include "kernels/cuda/sm90/ptx/copy.cuh"
#include "kernels/cuda/sm90/ptx/named_barrier.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"
#include "kernels/cuda/sm90/ptx/wgmma.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;
constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kWarpgroup;
constexpr int kClusterBlocks = 2;
constexpr uint16_t kBothBlocks = 0b11;

constexpr int kMultiplierRows = 64;
constexpr int kBlockRows = kMultipliers * kMultiplierRows;
constexpr int kClusterRows = kClusterBlocks * kBlockRows;
constexpr int kColumns = 128;      // of gate, and as many of up
constexpr int kPanelColumns = 64;  // of 2 bytes: the 128 bytes of the swizzle
constexpr int kStages = 4;

constexpr uint32_t kRowBytes = kPanelColumns * 2;
constexpr int kStepProducts = kRowBytes / 32;  // an instruction takes 32 bytes of a row
// Columns of a step.
template <typename Factor>
constexpr int kDepth = kRowBytes / sizeof(Factor);
constexpr uint32_t kStageBytes = (kBlockRows + 2 * kColumns) * kRowBytes;

// A warpgroup has 168 registers a thread when three start; these deal the same number out again.
constexpr int kProducerRegisters = 40;
constexpr int kMultiplierRegisters = 232;

// Row tiles that the clusters take together before they go on to the next columns. 66 clusters are
// then at 8 by 8 tiles: as much of A as of the weight, and that of A, 17 MB at 4,096 columns, stays
// in the L2 cache while the weight streams by. 4, 12, 16 and 32 are 1 to 7 % slower on an H100.
constexpr int kGroupTiles = 8;

struct alignas(1024) Shared {
  std::byte a[kStages][kBlockRows * kRowBytes];
  std::byte gate_up[kStages][2][kColumns * kRowBytes];
  std::byte out[kMultipliers][kColumns / kPanelColumns][kMultiplierRows * kRowBytes];
  uint64_t full[kStages];   // what a step multiplies is here
  uint64_t empty[kStages];  // the warps of both blocks have multiplied it
};
static_assert(sizeof(Shared) <= 227 * 1024);
constexpr uint32_t kEmptyArrivals = kClusterBlocks * kMultipliers * kWarpgroup / kWarp;

struct Problem {
  int num_steps;
  int rows;  // of the output
  int columns;
  int num_row_tiles;  // of a cluster
  int num_column_tiles;
  const float* row_scales;     // [rows], of float8
  const float* weight_scales;  // [2 columns]
};

// Of a cluster: its first row and column.
struct Tile {
  int row;
  int column;

  __device__ Tile(const Problem& problem, int number) {
    const int tiles_per_group = kGroupTiles * problem.num_column_tiles;
    const int first = number / tiles_per_group * kGroupTiles;
    const int num_rows = min(kGroupTiles, problem.num_row_tiles - first);
    const int inside = number % tiles_per_group;
    row = (first + inside % num_rows) * kClusterRows;
    column = inside / num_rows * kColumns;
  }
};

// f(tile) for those of this cluster.
template <typename F>
__device__ void for_each_tile(const Problem& problem, F&& f) {
  const int num_clusters = static_cast<int>(gridDim.x) / kClusterBlocks;
  const int num_tiles = problem.num_row_tiles * problem.num_column_tiles;
  for (int i = static_cast<int>(blockIdx.x) / kClusterBlocks; i < num_tiles; i += num_clusters) {
    f(Tile(problem, i));
  }
}

// One thread. A stage is written in both blocks, so both must have left it.
template <typename Factor>
__device__ void bring_tiles(Shared& shared, const Problem& problem, const CUtensorMap& a_map,
                            const CUtensorMap& gate_up_map, int rank) {
  RingCursor<kStages> at;
  for_each_tile(problem, [&](const Tile& tile) {
    for (int step = 0; step < problem.num_steps; ++step, at.advance()) {
      ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
      uint64_t* full = &shared.full[at.stage];
      ptx::barrier_arrive_expecting(full, kStageBytes);
      const int x = step * kDepth<Factor>;
      ptx::copy_box(ptx::shared_address(shared.a[at.stage]), a_map, x, tile.row + rank * kBlockRows,
                    0, full);
      ptx::copy_box_to_all(ptx::shared_address(shared.gate_up[at.stage][rank]), gate_up_map, x,
                           tile.column, rank, full, kBothBlocks);
    }
  });
}

// -inf gives NaN, as x / (1 + exp(-x)) does in any precision.
__device__ inline float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

// One warpgroup. Factor: of what is multiplied; Element: of the output.
template <typename Factor, typename Element>
class Multiplier {
 public:
  __device__ Multiplier(Shared& shared, const Problem& problem, int warpgroup, int rank)
      : shared_(shared),
        problem_(problem),
        warpgroup_(warpgroup),
        block_row_(rank * kBlockRows + warpgroup * kMultiplierRows) {}

  __device__ void run(const CUtensorMap& out_map) {
    for_each_tile(problem_, [&](const Tile& tile) {
      multiply();
      if constexpr (std::is_same_v<Factor, Float8>) scale(tile);
      activate();
      store(tile, out_map);
    });
    if (thread() == 0) ptx::wait_for_stores_to_read();
  }

 private:
  static constexpr int kGates = kMultiplierRows * kColumns / kWarpgroup;  // a thread's

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kWarpgroup; }

  __device__ void multiply() {
    int before = 0;  // the stage of the step before
    for (int step = 0; step < problem_.num_steps; ++step, at_.advance()) {
      ptx::barrier_wait(&shared_.full[at_.stage], at_.parity);
      issue_step(at_.stage, step > 0);
      ptx::wgmma_wait<1>();
      if (step > 0) leave(before);
      before = at_.stage;
    }
    ptx::wgmma_wait<0>();
    leave(before);
    ptx::fence_operand(sums_);
  }

  __device__ void issue_step(int stage, bool keep) {
    const uint32_t rows = ptx::shared_address(shared_.a[stage]) +
                          static_cast<uint32_t>(warpgroup_) * kMultiplierRows * kRowBytes;
    const uint64_t a = ptx::matrix_descriptor(ptx::uniform(rows), 16);
    const uint64_t b =
        ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.gate_up[stage])), 16);
    ptx::fence_operand(sums_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepProducts; ++k) {
      ptx::wgmma_shared_256<Factor>(sums_, a + k * 2, b + k * 2, keep || k > 0);
    }
    ptx::wgmma_commit();
    ptx::fence_operand(sums_);
  }

  // Each warp tells both blocks.
  __device__ void leave(int stage) {
    const uint32_t lane = threadIdx.x % kWarp;
    if (lane < kClusterBlocks) ptx::barrier_arrive_at(&shared_.empty[stage], lane);
  }

  __device__ void scale(const Tile& tile) {
    const int first_row = tile.row + block_row_ + thread() / kWarp * 16 + thread() % kWarp / 4;
    float row_scales[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_scales[half] = problem_.row_scales[min(first_row + 8 * half, problem_.rows - 1)];
    }
    const int first_column = tile.column + thread() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = min(first_column + 8 * j + e, problem_.columns - 1);
        const float gate = problem_.weight_scales[column];
        const float up = problem_.weight_scales[problem_.columns + column];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sums_[4 * j + 2 * half + e] *= row_scales[half] * gate;
          sums_[kGates + 4 * j + 2 * half + e] *= row_scales[half] * up;
        }
      }
    }
  }

  // To shared memory, where the tile before has left for memory by now.
  __device__ void activate() {
    if (thread() == 0) ptx::wait_for_stores_to_read();
    ptx::synchronise_warpgroup(warpgroup_);
    auto& panels = shared_.out[warpgroup_];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* gate = sums_ + 4 * j + 2 * half;
        const float* up = gate + kGates;
        const int row = thread() / kWarp * 16 + thread() % kWarp / 4 + 8 * half;
        // Chunks of 16 bytes in the swizzle of the copy engine, a lane's place in its chunk.
        std::byte* to = panels[j / 8] + row * kRowBytes + (j % 8 ^ row % 8) * 16 + thread() % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) =
            ptx::pack_finite<Element>(silu(gate[0]) * up[0], silu(gate[1]) * up[1]);
      }
    }
    ptx::fence_async_shared();
    ptx::synchronise_warpgroup(warpgroup_);
  }

  __device__ void store(const Tile& tile, const CUtensorMap& out_map) {
    if (thread() != 0) return;
#pragma unroll
    for (int panel = 0; panel < kColumns / kPanelColumns; ++panel) {
      ptx::store_box(out_map, tile.column + panel * kPanelColumns, tile.row + block_row_, 0,
                     ptx::shared_address(shared_.out[warpgroup_][panel]));
    }
    ptx::commit_stores();
  }

  Shared& shared_;
  const Problem& problem_;
  int warpgroup_;
  int block_row_;  // the first of its own in the cluster's tile
  RingCursor<kStages> at_;
  float sums_[2 * kGates];  // gates, then ups, as ptx/wgmma.cuh says
};

template <typename Factor, typename Element>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    swiglu_kernel(const __grid_constant__ Problem problem,
                  const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ CUtensorMap gate_up_map,
                  const __grid_constant__ CUtensorMap out_map) {
  extern __shared__ std::byte raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw);
  if (ptx::shared_address(raw) % alignof(Shared) != 0) __trap();
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const int rank = static_cast<int>(ptx::cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], kEmptyArrivals);
    }
    ptx::fence_barrier_init();
  }
  ptx::synchronise_cluster();
  if (warpgroup == kMultipliers) {
    ptx::warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x == kMultipliers * kWarpgroup) {
      bring_tiles<Factor>(shared, problem, a_map, gate_up_map, rank);
    }
    __syncwarp();
  } else {
    ptx::warpgroup_reg_alloc<kMultiplierRegisters>();
    Multiplier<Factor, Element>(shared, problem, warpgroup, rank).run(out_map);
  }
  // A block stays until the other has brought it all that it counts on, and left its barriers.
  ptx::synchronise_cluster();
}

// a: of as many columns as its weight, both in rows whose bytes the copy engine can take.
template <typename Params>
void check_sizes(const Params& p, int64_t step) {
  MR_CHECK(p.a.rows == p.out.rows && p.a.cols == p.gate_up.cols && p.a.cols > 0 &&
               p.gate_up.rows == 2 * p.out.cols,
           "swiglu: a is {} x {}, gate and up {} x {}, out {} x {}", p.a.rows, p.a.cols,
           p.gate_up.rows, p.gate_up.cols, p.out.rows, p.out.cols);
  MR_CHECK(
      p.a.row_stride % step == 0 && p.gate_up.row_stride % step == 0 && p.out.row_stride % 8 == 0,
      "swiglu: rows {}, {} and {} elements apart, not multiples of {}, {} and 8", p.a.row_stride,
      p.gate_up.row_stride, p.out.row_stride, step, step);
}

// That this kind of GPU has room for at a time: a block takes a multiprocessor, and those of a
// cluster must lie together.
template <typename Kernel>
int max_clusters(Kernel* kernel, int num_sms) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(num_sms / kClusterBlocks * kClusterBlocks);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(Shared);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  MR_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
  MR_CHECK(count > 0, "swiglu: no room for a cluster on {} multiprocessors", num_sms);
  return count;
}

template <typename Factor, typename Element>
void launch(Problem problem, const CUtensorMap& a_map, const CUtensorMap& gate_up_map,
            int64_t depth, const Matrix& out, Context& context) {
  problem.num_steps = static_cast<int>(ceil_div(depth, int64_t{kDepth<Factor>}));
  problem.rows = static_cast<int>(out.rows);
  problem.columns = static_cast<int>(out.cols);
  problem.num_row_tiles = static_cast<int>(ceil_div(out.rows, int64_t{kClusterRows}));
  problem.num_column_tiles = static_cast<int>(ceil_div(out.cols, int64_t{kColumns}));
  auto* kernel = swiglu_kernel<Factor, Element>;
  constexpr int kBytes = sizeof(Shared);
  MR_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  static const int kMaxClusters = max_clusters(kernel, context.num_sms);
  const int num_clusters = std::min(kMaxClusters, problem.num_row_tiles * problem.num_column_tiles);
  kernel<<<static_cast<unsigned>(num_clusters * kClusterBlocks), kThreads, kBytes,
           context.stream>>>(problem, a_map, gate_up_map,
                             matrix_tensor_map(out, 1, kMultiplierRows));
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace

void swiglu(const SwigluParams& params, Context& context) {
  const auto& [a, gate_up, activation, products, out] = params;
  MR_CHECK(activation.kind == Activation::Kind::kSilu, "swiglu of another activation");
  MR_CHECK(a.dtype == gate_up.dtype && a.dtype == out.dtype, "swiglu: {}, {} and {}",
           dtype_name(a.dtype), dtype_name(gate_up.dtype), dtype_name(out.dtype));
  check_sizes(params, 8);
  if (out.rows == 0) return;
  const auto a_map = matrix_tensor_map(a, 1, kBlockRows);
  const auto gate_up_map = matrix_tensor_map(gate_up, 2, kColumns);
  dispatch_narrow_dtype(out.dtype, [&]<typename Element>(Element) {
    launch<Element, Element>({}, a_map, gate_up_map, params.a.cols, params.out, context);
  });
}

void float8_swiglu(const Float8SwigluParams& params, Context& context) {
  const auto& [a, gate_up, activation, products, out] = params;
  MR_CHECK(activation.kind == Activation::Kind::kSilu, "swiglu of another activation");
  MR_CHECK(out.dtype == DType::kBFloat16, "swiglu of 8-bit floats: out is {}",
           dtype_name(out.dtype));
  check_sizes(params, kFloat8WidthStep);
  if (out.rows == 0) return;
  launch<Float8, BFloat16>({.row_scales = a.scales, .weight_scales = gate_up.scales},
                           matrix_tensor_map(a, 1, kBlockRows),
                           matrix_tensor_map(gate_up, 2, kColumns), a.cols, out, context);
}

}  // namespace millrace::kernels::cuda
