// SPDX-License-Identifier: Apache-2.0
// Centres and spreads of groups of keys, which are pages or spans of pages: the adaptive pattern's filter
// estimates their masses from them (AdaptiveParams has the definition).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/estimation/panel_matrix.h"

namespace millrace::kernels::cpu {

class KeyMoments {
 public:
  KeyMoments(int64_t num_groups, int64_t dim);

  // Different groups may be set by different threads. Quantises the mean of the group's keys, [dim].
  void set_mean(int64_t group, const std::vector<float>& mean);
  // Rounds the spread, [dim], to float16.
  void set_spread(int64_t group, const std::vector<float>& spread, float step);

  // One channel of the centre, C c8, and of the spread, t^2 v.
  float centre(int64_t group, int64_t d) const {
    return centre_steps_[static_cast<size_t>(group)] * centres_.at(group, d);
  }
  double variance(int64_t group, int64_t d) const {
    const double step = double{steps_[static_cast<size_t>(group)]};
    return step * step * double{spreads_.at(group, d)};
  }

  // c8 of each group as a column: whole numbers of at most 127, so that products with int8 rows are exact in
  // float32, whatever the order of their sums.
  const PanelMatrix& centres() const { return centres_; }
  const float* centre_steps() const {
    return centre_steps_.data();
  }  // C; NaN if a mean is not finite
  // v of each group as a column.
  const PanelMatrix& spreads() const { return spreads_; }
  const float* steps() const { return steps_.data(); }  // t; NaN if a key is not finite

 private:
  PanelMatrix centres_;
  PanelMatrix spreads_;
  std::vector<float> centre_steps_;
  std::vector<float> steps_;
};

}  // namespace millrace::kernels::cpu
