// SPDX-License-Identifier: Apache-2.0
// Accumulated recall of measured rows: the share of its attention mass that each row attended to.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::engine {

// Plain bytes, so that ranks can exchange it.
struct RecallStats {
  // Bin b counts shares in [b, b + 1) percent; the last bin counts shares of 1.
  static constexpr size_t kBins = 101;

  // A NaN counts as 0 in the bins and shows in the mean.
  void add(double share) {
    sum += share;
    const double bin = share > 0 ? std::min(share, 1.0) * (kBins - 1) : 0;
    ++bins[static_cast<size_t>(bin)];
  }
  void add(const RecallStats& other) {
    sum += other.sum;
    for (size_t bin = 0; bin < kBins; ++bin) bins[bin] += other.bins[bin];
  }

  int64_t count() const {
    int64_t rows = 0;
    for (const int64_t bin : bins) rows += bin;
    return rows;
  }
  // 1 where nothing was measured: all heads were dense, or the prompt is short.
  double mean() const { return count() == 0 ? 1.0 : sum / static_cast<double>(count()); }
  // The share that all but one row in a hundred reach, rounded down to a percent.
  double first_percentile() const {
    int64_t left = count() / 100;
    for (size_t bin = 0; bin < kBins; ++bin) {
      left -= bins[bin];
      if (left < 0) return static_cast<double>(bin) / (kBins - 1);
    }
    return 1.0;
  }

  double sum = 0;
  std::array<int64_t, kBins> bins = {};
};

}  // namespace millrace::engine
