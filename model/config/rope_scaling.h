// SPDX-License-Identifier: Apache-2.0
// How a model stretches its rotary embedding beyond the positions that it was first trained on.
#pragma once

#include <variant>
#include <vector>

namespace millrace::model {

// Stretches all wavelengths by the same factor (config field rope_type "linear").
struct LinearRopeScaling {
  double factor = 1;

  bool operator==(const LinearRopeScaling&) const = default;
};

// Llama 3.1's: stretches long wavelengths by a factor ("llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;

  bool operator==(const Llama3RopeScaling&) const = default;
};

// YaRN (Peng et al. 2023): dimensions that rotate often stay, those that rotate seldom are
// stretched ("yarn").
struct YarnRopeScaling {
  double factor = 1;
  double beta_fast = 32;  // turns within the original context from which a dimension stays
  double beta_slow = 1;   // turns up to which it is fully stretched
  bool truncate = true;   // round the two borders to whole dimensions
  double original_max_position_embeddings = 0;
  double attention_factor = 1;  // multiplies cosines and sines

  bool operator==(const YarnRopeScaling&) const = default;
};

// LongRoPE (Ding et al. 2024): a factor for each dimension; one set for prompts up to the original
// context, and one for longer prompts ("longrope", Phi-3's "su").
struct LongRopeScaling {
  std::vector<double> short_factors;  // [rotary dimension / 2]
  std::vector<double> long_factors;
  double original_max_position_embeddings = 0;
  double attention_factor = 1;  // multiplies cosines and sines

  bool operator==(const LongRopeScaling&) const = default;
};

using RopeScaling = std::variant<std::monostate, LinearRopeScaling, Llama3RopeScaling,
                                 YarnRopeScaling, LongRopeScaling>;

}  // namespace millrace::model
