// SPDX-License-Identifier: Apache-2.0
// Launches of the attention kernel, one translation unit per shape.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/attention.h"
#include "kernels/cuda/sm90/attention/attention_arguments.h"

namespace millrace::kernels::cuda {

// Element is BFloat16 or Float16.
template <typename Element, int kHeadDim>
void launch_attention(const AttentionArguments& arguments, const KvSlab& kv, int num_blocks,
                      cudaStream_t stream);

// After launch_attention: merges the rows of groups that were cut. `groups` is device memory;
// `dtype` is that of the output.
void merge_parts(const AttentionArguments& arguments, const CutGroup* groups, int num_groups,
                 int head_dim, DType dtype, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
