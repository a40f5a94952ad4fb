// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies between global and shared memory: 16 bytes by cp.async, boxes of a tensor and
// contiguous bytes by the copy engine (PTX ISA 9.0, "cp.async", "cp.async.bulk" and
// "cp.async.bulk.tensor").
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/sm90/ptx/barrier.cuh"

namespace millrace::kernels::cuda::ptx {

// Copies 16 bytes; zeros if `present` is false (the source is then not read).
__device__ inline void copy_16_bytes(uint32_t shared, const void* global, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(present ? 16 : 0)
               : "memory");
}

// Loads the box of `map` at (x, y, z), x fastest; out-of-range elements are zeros. Counts its bytes
// on `barrier`. One thread.
__device__ inline void copy_box(uint32_t shared, const CUtensorMap& map, int32_t x, int32_t y,
                                int32_t z, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}

// The reverse: stores the data at `shared`, which was written before a fence_async_shared, to the
// box; out-of-range elements are dropped. One thread, which then commits.
__device__ inline void store_box(const CUtensorMap& map, int32_t x, int32_t y, int32_t z,
                                 uint32_t shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(x), "r"(y), "r"(z), "r"(shared)
      : "memory");
}
// Copies contiguous bytes, with size and address multiples of 16, to shared memory, counted on
// `barrier`, or back, like store_box. `global` may be host memory that the GPU reaches. One thread.
__device__ inline void copy_bytes(uint32_t shared, const void* global, uint32_t bytes,
                                  uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void store_bytes(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until the shared memory of this thread's stores may be written again, except that of the
// last kPending commits.
template <int kPending = 0>
__device__ inline void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Prefetches the 128 bytes around the address.
__device__ inline void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace millrace::kernels::cuda::ptx
