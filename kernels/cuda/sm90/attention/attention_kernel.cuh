// SPDX-License-Identifier: Apache-2.0
// The attention kernel: a persistent grid of one block per multiprocessor. Each block has a
// warpgroup that loads keys and values, and one warpgroup per row tile of the current group.
#pragma once

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/attention/attention_gather.cuh"
#include "kernels/cuda/sm90/attention/attention_launch.h"
#include "kernels/cuda/sm90/attention/attention_rows.cuh"
#include "kernels/cuda/sm90/attention/attention_walk.cuh"

namespace millrace::kernels::cuda {

// Threads of four warpgroups start with 128 registers, those of three with 168; these redistribute
// the same total.
template <int kHeadDim>
struct AttentionBlock {
  static constexpr int kTiles = group_tiles(kHeadDim);
  static constexpr int kThreads = kWarpgroup * (kTiles + 1);
  static constexpr int kProducerRegisters = kTiles == 3 ? 80 : 88;
  static constexpr int kConsumerRegisters = kTiles == 3 ? 144 : 208;
};

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(AttentionBlock<kHeadDim>::kThreads, 1)
    attention_kernel(const __grid_constant__ AttentionArguments arguments,
                     const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ std::byte raw[];
  using Shared = AttentionShared<kHeadDim>;
  using Block = AttentionBlock<kHeadDim>;
  auto& shared = *reinterpret_cast<Shared*>(raw);
  if (ptx::shared_address(raw) % kSharedAlignment != 0) __trap();
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::barrier_init(&shared.full[i], kFullArrivals);
      ptx::barrier_init(&shared.empty[i], Shared::kEmptyArrivals);
      if constexpr (Shared::kApart) {
        ptx::barrier_init(&shared.full_values[i], kFullArrivals);
        ptx::barrier_init(&shared.empty_values[i], Shared::kEmptyArrivals);
      }
    }
    for (int i = 0; i < kOrders; ++i) {
      ptx::barrier_init(&shared.announced[i], 1);
      ptx::barrier_init(&shared.placed[i], 1);
    }
    ptx::fence_barrier_init();
    ptx::prefetch_map(k_map);
    ptx::prefetch_map(v_map);
  }
  __syncthreads();
  if (warpgroup == Block::kTiles) {
    ptx::warpgroup_reg_dealloc<Block::kProducerRegisters>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) % kWarpgroup / kWarp, 0);
    if (warp == 0) {
      AttentionWalker<kHeadDim>(shared, arguments, k_map, v_map).run();
    } else {
      AttentionGatherer<kHeadDim>(shared, arguments).run(warp - 1);
    }
  } else {
    ptx::warpgroup_reg_alloc<Block::kConsumerRegisters>();
    AttentionConsumer<Element, kHeadDim>(shared, arguments, warpgroup).run();
  }
}

template <typename Element, int kHeadDim>
void launch_attention(const AttentionArguments& arguments, const KvSlab& kv, int num_blocks,
                      cudaStream_t stream) {
  using Shared = AttentionShared<kHeadDim>;
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= 227 * 1024);
  auto* kernel = attention_kernel<Element, kHeadDim>;
  MR_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<num_blocks, AttentionBlock<kHeadDim>::kThreads, kBytes, stream>>>(
      arguments, key_tensor_map(kv.k, kv, kSlotKeys), key_tensor_map(kv.v, kv, kSlotKeys));
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
