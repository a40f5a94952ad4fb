// The attention kernel's launches, one translation unit per shape.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_arguments.h"

namespace millrace::kernels::cuda {

// k_map, v_map: [kv heads, tokens, head_dim] bf16 in boxes of 64 keys x 64 columns, 128-byte
// swizzle.
// Groups have at most kTiles tiles.
template <int kHeadDim, int kTiles>
void launch_attention(const AttentionArguments& arguments, const CUtensorMap& k_map,
                      const CUtensorMap& v_map, int num_blocks, cudaStream_t stream);

// After it: rows of groups that were cut. `groups` is device memory.
void merge_parts(const AttentionArguments& arguments, const CutGroup* groups, int num_groups,
                 int head_dim, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
