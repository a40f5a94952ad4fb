// SPDX-License-Identifier: Apache-2.0
#include "model/config/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::model {

namespace {

// Each operator returns the frequency of dimension pair i, which would be `frequency` without
// scaling. They follow Transformers' functions of ROPE_INIT_FUNCTIONS (modeling_rope_utils.py).
struct Scale {
  const ModelConfig& config;
  int32_t i;
  double frequency;
  bool long_prompt;

  double operator()(std::monostate) const { return frequency; }

  double operator()(const LinearRopeScaling& scaling) const { return frequency / scaling.factor; }

  // Short wavelengths stay, long ones are stretched, those between the two cut-offs are mixed
  // linearly in the number of turns that fit the original context.
  double operator()(const Llama3RopeScaling& scaling) const {
    const double wavelength = 2 * std::numbers::pi / frequency;  // tokens a turn
    const double turns = scaling.original_max_position_embeddings / wavelength;
    if (turns > scaling.high_freq_factor) return frequency;
    if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
    const double smooth =
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
  }

  // As llama3, but mixed linearly in the dimension's number.
  double operator()(const YarnRopeScaling& scaling) const {
    double low = dimension_of(scaling, scaling.beta_fast);
    double high = dimension_of(scaling, scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, config.num_turned() - 1.0);
    if (low == high) high += 0.001;  // as in Transformers
    const double stretched = std::clamp((i - low) / (high - low), 0.0, 1.0);
    return stretched * frequency / scaling.factor + (1 - stretched) * frequency;
  }

  double operator()(const LongRopeScaling& scaling) const {
    const auto& factors = long_prompt ? scaling.long_factors : scaling.short_factors;
    return frequency / factors[static_cast<size_t>(i)];
  }

 private:
  // The pair, as a fraction, that makes `turns` turns within the original context.
  double dimension_of(const YarnRopeScaling& scaling, double turns) const {
    const double wavelength = scaling.original_max_position_embeddings / turns;
    return config.num_turned() * std::log(wavelength / (2 * std::numbers::pi)) /
           (2 * std::log(config.rope_theta));
  }
};

}  // namespace

int64_t max_short_rope_tokens(const ModelConfig& config) {
  const auto* scaling = std::get_if<LongRopeScaling>(&config.rope_scaling);
  return scaling == nullptr ? 0 : static_cast<int64_t>(scaling->original_max_position_embeddings);
}

std::vector<float> rope_inv_freq(const ModelConfig& config, bool long_prompt) {
  std::vector<float> frequencies;
  const int32_t dim = config.num_turned();
  for (int32_t i = 0; i < dim / 2; ++i) {
    const double frequency = std::pow(config.rope_theta, -2.0 * i / dim);
    frequencies.push_back(static_cast<float>(
        std::visit(Scale{config, i, frequency, long_prompt}, config.rope_scaling)));
  }
  return frequencies;
}

std::vector<float> local_rope_inv_freq(const ModelConfig& config) {
  ModelConfig local = config;
  local.rope_theta = config.local_rope_theta;
  local.rope_scaling = {};
  return rope_inv_freq(local);
}

float rope_turn_scale(const ModelConfig& config) {
  if (const auto* yarn = std::get_if<YarnRopeScaling>(&config.rope_scaling)) {
    return static_cast<float>(yarn->attention_factor);
  }
  if (const auto* longrope = std::get_if<LongRopeScaling>(&config.rope_scaling)) {
    return static_cast<float>(longrope->attention_factor);
  }
  return 1;
}

}  // namespace millrace::model
