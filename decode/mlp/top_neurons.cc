// SPDX-License-Identifier: Apache-2.0
#include "decode/mlp/top_neurons.h"

#include <cstddef>

#include "common/check.h"
#include "decode/mlp/neuron_kernels.h"

namespace millrace::decode {

void TopNeurons::choose(std::span<const float> scores, int64_t count,
                        std::vector<int32_t>& chosen) {
  MR_CHECK(count >= 0 && count <= std::ssize(scores), "{} of {} neurons", count, scores.size());
  keys_.resize(scores.size());
  order_keys(scores.data(), std::ssize(scores), keys_.data());
  chosen.resize(static_cast<size_t>(count));
  if (count == 0) return;
  const int32_t least = least_key(count);
  // How many of those equal to the least key to take.
  int64_t spare = count;
  if (least < INT32_MAX) spare -= count_at_least(keys_.data(), std::ssize(keys_), least + 1);
  // Without branches, because which neurons are taken is unpredictable.
  int32_t* to = chosen.data();
  int32_t* const end = to + count;
  for (size_t i = 0; i < keys_.size() && to != end; ++i) {
    const bool equal = keys_[i] == least && spare > 0;
    spare -= equal ? 1 : 0;
    *to = static_cast<int32_t>(i);
    to += keys_[i] > least || equal ? 1 : 0;
  }
}

// The greatest key that at least `count` keys reach, found bit by bit: 32 vectorised counts take
// less time than a selection, whose branches cannot be predicted.
int32_t TopNeurons::least_key(int64_t count) const {
  uint32_t least = 0;  // from INT32_MIN on
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    const auto key = static_cast<int32_t>((least | bit) ^ (1u << 31));
    if (count_at_least(keys_.data(), std::ssize(keys_), key) >= count) least |= bit;
  }
  return static_cast<int32_t>(least ^ (1u << 31));
}

}  // namespace millrace::decode
