// SPDX-License-Identifier: Apache-2.0
// What one query head computes under its real index, and what that costs.
#pragma once

#include <cstdint>
#include <span>

#include "calibrate/kernel_costs.h"
#include "kernels/index/index.h"
#include "kernels/index/tiling.h"
#include "plan/head_pattern.h"

namespace millrace::calibrate {

// Blocks are 64 rows x 64 keys. A partial block counts as a whole one, as kernels compute it
// (MInference's "kernel-aware": a diagonal alone costs a block's width).
struct HeadWork {
  int64_t dense_blocks = 0;     // of row tiles that run densely
  int64_t listed_blocks = 0;    // of bands and lists
  int64_t gathered_blocks = 0;  // of 64 columns
  int64_t pairs = 0;            // (query, key) pairs with key <= query

  bool operator==(const HeadWork&) const = default;
};

// `tiles`: all tiles of the prompt, in order; tile i has local number i. Lists are in host memory.
HeadWork count_work(const kernels::HeadIndex& head, std::span<const kernels::RowTile> tiles,
                    int64_t num_tokens);

// The work of a head that runs densely.
HeadWork dense_work(std::span<const kernels::RowTile> tiles);

// The time to find the lists and attend by them, as a share of the same head's time with dense
// attention. `dense`: dense_work of the same tiles.
double time_share(const KernelCosts& costs, const plan::HeadPattern& pattern, const HeadWork& work,
                  const HeadWork& dense);

}  // namespace millrace::calibrate
