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

}  // namespace millrace::kernels::cpu
