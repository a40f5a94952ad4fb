// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/adaptive/key_moments.h"

#include "common/dtype.h"
#include "kernels/cpu/estimation/adaptive/int8_steps.h"

namespace millrace::kernels::cpu {

KeyMoments::KeyMoments(int64_t num_groups, int64_t dim)
    : centres_(num_groups, dim),
      spreads_(num_groups, dim),
      centre_steps_(static_cast<size_t>(num_groups)),
      steps_(static_cast<size_t>(num_groups)) {}

void KeyMoments::set_mean(int64_t group, const std::vector<float>& mean) {
  const Int8Steps steps = int8_steps(mean.data(), std::ssize(mean));
  std::vector<float> bytes(mean.size());
  if (steps.inverse != 0) {
    for (size_t d = 0; d < mean.size(); ++d) bytes[d] = steps.round(mean[d]);
  }
  centres_.set_column(group, bytes.data());
  centre_steps_[static_cast<size_t>(group)] = steps.step;
}

void KeyMoments::set_spread(int64_t group, const std::vector<float>& spread, float step) {
  std::vector<float> rounded;
  for (const float x : spread) rounded.push_back(rounded_to(DType::kFloat16, x));
  spreads_.set_column(group, rounded.data());
  steps_[static_cast<size_t>(group)] = step;
}

}  // namespace millrace::kernels::cpu
