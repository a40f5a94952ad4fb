// What every device asks of the parameters of an estimation before it begins. Shapes that do not
// fit are a bug of the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/api/estimation.h"

namespace millrace::kernels {

void check_last_rows(const LastRows& last, const KvSlab& kv);

// Rows of the rank, at positions that ascend and that the prompt has.
void check_row_recall(const RowRecallParams& params);

// For patterns that write block lists: `num_settings` are gammas or page counts, one a head.
void check_block_index(const IndexView& index, std::span<const RowTile> tiles,
                       std::span<const int32_t> heads, size_t num_settings);

// Of the whole call.
void check_adaptive(const AdaptiveParams& params);

// Of the whole call. The budgets are checked one by one, below.
void check_vertical_slash(const VerticalSlashParams& params);

// What the `number`-th head of the call selects: its budget, raised and clamped as
// VerticalSlashBudget says. The index has room for it.
VerticalSlashBudget checked_budget(const VerticalSlashParams& params, size_t number);

}  // namespace millrace::kernels
