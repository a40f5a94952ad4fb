// SPDX-License-Identifier: Apache-2.0
// The exact attention mass that each page of a prompt gets from rows throughout the prompt. Page
// scores would be this if they did not come from the last rows alone (H2O, arXiv 2306.14048).
#pragma once

#include <cstdint>

#include "engine/index/index_tap.h"
#include "kernels/cpu/runtime/context.h"
#include "kvstore/rules/page_budget.h"

namespace millrace::bench {

class ColumnMass {
 public:
  static constexpr int64_t kRows = 8;  // of each row tile, evenly spaced

  ColumnMass(int32_t num_layers, int32_t num_kv_heads, int64_t num_tokens,
             const kernels::cpu::Context& context);

  // Adds a layer in host memory.
  void add(const engine::BuiltIndex& layer);

  // Of all added layers: the mean over the rows that see the page and over the query heads of a kv
  // head. The scores of a kv head sum to 1.
  const kvstore::PageScores& scores() const { return scores_; }

 private:
  void add_head(const engine::BuiltIndex& layer, int32_t query_head, std::vector<double>& mass,
                std::vector<int64_t>& num_rows) const;

  kernels::cpu::Context context_;
  kvstore::PageScores scores_;
};

}  // namespace millrace::bench
