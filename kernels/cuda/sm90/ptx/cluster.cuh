// SPDX-License-Identifier: Apache-2.0
// Thread blocks of a cluster, which see each other's shared memory (PTX ISA 9.0, "mapa",
// "barrier.cluster", "mbarrier.arrive" and "cp.async.bulk.tensor" with multicast).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/sm90/ptx/barrier.cuh"

namespace millrace::kernels::cuda::ptx {

// The rank of this block in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits until all threads of all blocks of the cluster are here; orders their shared memory.
__device__ inline void synchronise_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Arrives at the barrier that the block of this rank has at the address of the caller's `barrier`.
// It does not order the thread's writes: a release at cluster scope would cost a fence of the whole
// GPU.
__device__ inline void barrier_arrive_at(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// Like copy_box, but to the same address in every block whose bit in `ranks` is set. Counts the
// bytes on the barrier of each.
__device__ inline void copy_box_to_all(uint32_t shared, const CUtensorMap& map, int32_t x,
                                       int32_t y, int32_t z, uint64_t* barrier, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier)), "h"(ranks)
      : "memory");
}

}  // namespace millrace::kernels::cuda::ptx
