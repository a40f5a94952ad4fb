// Which rows of a tile the adaptive pattern's scan multiplies with keys (AdaptiveParams).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels::cpu {

// Working memory of one thread.
class RowSample {
 public:
  explicit RowSample(int64_t dim);

  // min(count, num_rows) of the rows [num_rows, dim] of a tile, in the order in which they are
  // chosen. Valid until the next call.
  std::span<const int64_t> choose(const float* rows, int64_t num_rows, int64_t count);

 private:
  void quantise(const float* rows, int64_t num_rows);
  int64_t furthest_from_mean() const;
  // Which row is furthest from the nearest chosen one, now that `last` is chosen.
  int64_t furthest_from_chosen(int64_t last);
  const int8_t* row(int64_t number) const { return bytes_.data() + number * dim_; }

  int64_t dim_;
  std::vector<int8_t> bytes_;       // [rows, dim]
  std::vector<int32_t> distances_;  // [rows] squared, to the nearest chosen row; -1 of a chosen one
  std::vector<int64_t> chosen_;
};

}  // namespace millrace::kernels::cpu
