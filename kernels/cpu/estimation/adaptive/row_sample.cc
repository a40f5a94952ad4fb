// SPDX-License-Identifier: Apache-2.0
// Compiled without fused multiply-adds, so that the bytes are the same on every machine.
#include "kernels/cpu/estimation/adaptive/row_sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/estimation/adaptive/int8_steps.h"

namespace millrace::kernels::cpu {
namespace {

int32_t product(const int8_t* a, const int8_t* b, int64_t dim) {
  int32_t sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += int32_t{a[d]} * b[d];
  return sum;
}

int32_t squared_distance(const int8_t* a, const int8_t* b, int64_t dim) {
  int32_t sum = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const int32_t difference = int32_t{a[d]} - b[d];
    sum += difference * difference;
  }
  return sum;
}

}  // namespace

RowSample::RowSample(int64_t dim) : dim_(dim) {}

std::span<const int64_t> RowSample::choose(const float* rows, int64_t num_rows, int64_t count) {
  chosen_.resize(static_cast<size_t>(std::min(count, num_rows)));
  if (count >= num_rows) {
    std::iota(chosen_.begin(), chosen_.end(), 0);
    return chosen_;
  }
  quantise(rows, num_rows);
  distances_.assign(static_cast<size_t>(num_rows), std::numeric_limits<int32_t>::max());
  chosen_.front() = furthest_from_mean();
  for (size_t i = 1; i < chosen_.size(); ++i) chosen_[i] = furthest_from_chosen(chosen_[i - 1]);
  return chosen_;
}

void RowSample::quantise(const float* rows, int64_t num_rows) {
  const Int8Steps steps = int8_steps(rows, num_rows * dim_);
  bytes_.assign(static_cast<size_t>(num_rows * dim_), 0);
  if (steps.inverse == 0 || !std::isfinite(steps.inverse)) return;
  for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = steps.round(rows[i]);
}

// Compares |n a - sum|^2 / n minus |sum|^2 / n, which all rows share.
int64_t RowSample::furthest_from_mean() const {
  const int64_t num_rows = std::ssize(distances_);
  std::vector<int64_t> sum(static_cast<size_t>(dim_));
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t d = 0; d < dim_; ++d) sum[static_cast<size_t>(d)] += row(r)[d];
  }
  const auto distance = [&](int64_t r) {
    int64_t with_sum = 0;
    for (int64_t d = 0; d < dim_; ++d) with_sum += row(r)[d] * sum[static_cast<size_t>(d)];
    return num_rows * product(row(r), row(r), dim_) - 2 * with_sum;
  };
  int64_t furthest = 0;
  int64_t largest = distance(0);
  for (int64_t r = 1; r < num_rows; ++r) {
    const int64_t other = distance(r);
    if (other <= largest) continue;
    largest = other;
    furthest = r;
  }
  return furthest;
}

int64_t RowSample::furthest_from_chosen(int64_t last) {
  for (int64_t r = 0; r < std::ssize(distances_); ++r) {
    int32_t& nearest = distances_[static_cast<size_t>(r)];
    nearest = std::min(nearest, squared_distance(row(r), row(last), dim_));
  }
  distances_[static_cast<size_t>(last)] = -1;
  return std::ranges::max_element(distances_) - distances_.begin();
}

}  // namespace millrace::kernels::cpu
