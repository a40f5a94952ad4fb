#include "model/config/rope.h"

#include <cmath>
#include <numbers>

namespace millrace::model {

namespace {

// Llama 3.1's rule, as in Transformers' _compute_llama3_parameters: short wavelengths stay, long
// ones are stretched by `factor`, those between the two cut-offs are mixed linearly in the number
// of turns that fit the original context.
double scale_frequency(double frequency, const Llama3RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;  // tokens a turn
  const double turns = scaling.original_max_position_embeddings / wavelength;
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_inv_freq(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (int32_t i = 0; i < config.head_dim / 2; ++i) {
    double frequency = std::pow(config.rope_theta, -2.0 * i / config.head_dim);
    if (config.rope_scaling) frequency = scale_frequency(frequency, *config.rope_scaling);
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

}  // namespace millrace::model
