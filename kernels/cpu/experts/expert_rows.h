// SPDX-License-Identifier: Apache-2.0
// Sorts the rows of a product by the experts that they chose.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels::cpu {

// Used by one thread at a time. Keeps its memory from call to call.
class ExpertRows {
 public:
  // Sorts [rows, experts_per_row] choices by expert and, for each expert, by row. An expert outside
  // [0, num_experts), or one that a row chose twice, is a bug of the caller.
  void sort(const int32_t* experts, int64_t num_rows, int32_t experts_per_row, int32_t num_experts);

  // Indices into the choices; the row is index / experts_per_row.
  std::span<const int64_t> choices_of(int32_t expert) const;

 private:
  std::vector<int64_t> begin_;  // [num_experts + 1] indices into choices_
  std::vector<int64_t> choices_;
};

}  // namespace millrace::kernels::cpu
