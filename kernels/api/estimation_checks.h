// SPDX-License-Identifier: Apache-2.0
// Checks of estimation parameters that all devices share. Shapes that do not fit are a bug of the caller
// (MR_CHECK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/api/estimation.h"

namespace millrace::kernels {

void check_last_rows(const LastRows& last, const KvSlab& kv);

// Rows must belong to the rank, at ascending positions within the prompt.
void check_row_recall(const RowRecallParams& params);

// For patterns that write block lists: `num_settings` are gammas or page counts, one a head.
void check_block_index(const IndexView& index, std::span<const RowTile> tiles,
                       std::span<const int32_t> heads, size_t num_settings);

// Checks the whole call.
void check_adaptive(const AdaptiveParams& params);

// Checks the call, except for the budgets, which checked_budget() checks one by one.
void check_vertical_slash(const VerticalSlashParams& params);

// The budget of the `number`-th head of the call, raised and clamped as described at
// VerticalSlashBudget. Checks that the index has room for it.
VerticalSlashBudget checked_budget(const VerticalSlashParams& params, size_t number);

}  // namespace millrace::kernels
