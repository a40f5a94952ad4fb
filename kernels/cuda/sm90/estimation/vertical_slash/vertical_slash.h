// SPDX-License-Identifier: Apache-2.0
// The launch of build_vertical_slash.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/index/index.h"

namespace millrace::kernels::cuda {

// One head: its budgets, clamped and raised, and where its working memory begins.
struct VerticalSlashHead {
  int32_t head = 0;
  int32_t verticals = 0;
  int32_t slashes = 0;
  int64_t first_slash = 0;  // into the arrays of VerticalSlashWork
};

// Device memory, one element for each slash of each head.
struct VerticalSlashWork {
  int32_t* offsets = nullptr;
  Band* bands = nullptr;
  int32_t* closes_gap = nullptr;  // whether the gap behind a band is closed
};

struct VerticalSlashArguments {
  const float* column_sums = nullptr;
  const float* diagonal_sums = nullptr;
  int64_t num_tokens = 0;
  const VerticalSlashHead* heads = nullptr;
  int32_t num_heads = 0;
  VerticalSlashWork work;
  IndexView index;
};

void launch_vertical_slash(const VerticalSlashArguments& arguments, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
