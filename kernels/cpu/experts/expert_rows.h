// The rows of a product dealt out to the experts that they chose.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels::cpu {

// One thread at a time. Keeps its memory from call to call.
class ExpertRows {
 public:
  // Sorts [rows, experts_per_row] choices by expert, of each expert by row. An expert that is none
  // of [0, num_experts), or twice in a row, is a bug.
  void sort(const int32_t* experts, int64_t num_rows, int32_t experts_per_row, int32_t num_experts);

  // Indices into the choices, index / experts_per_row being the row.
  std::span<const int64_t> choices_of(int32_t expert) const;

 private:
  std::vector<int64_t> begin_;  // [num_experts + 1], places in choices_
  std::vector<int64_t> choices_;
};

// The height of the product for `num_rows` >= 1 rows: the next number whose binary digits behind
// the first three are zeros, at most `max_rows`. Up to a fourth more work, a tenth on average, for
// 36 heights up to 1024 instead of 1024: every height is a program that oneDNN compiles for a
// millisecond (kernels/cpu/runtime/matmul_cache.h).
int64_t expert_product_rows(int64_t num_rows, int64_t max_rows);

}  // namespace millrace::kernels::cpu
