// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic/synthetic_heads.h"

#include <cmath>
#include <numbers>

#include "model/config/rope.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::model {

namespace {

// Radians a token. Faster pairs would cut bands into slivers narrower than a row tile. Pairs slower
// than kSlowestBand hardly move within a prompt.
constexpr double kFastestBand = 0.05;
constexpr double kSlowestBand = 1e-5;
// Half a radian in 2^20 tokens: columns keep 88 % of their score over that distance.
constexpr double kFastestColumn = 0.5 / (1 << 20);

// Standard deviation of f(o), in nats, drawn for each query head.
constexpr double kMinBandNats = 4;
constexpr double kMaxBandNats = 6;
// Phases up to 1.4 radians leave 0.7 of all amplitudes at offset 0; phases up to 3 leave almost
// none.
constexpr double kMinSpread = 1.4;
constexpr double kMaxSpread = 3.0;
// What the heaviest token's key gets, drawn for each query head: in one head as much as the highest
// peak of f(o), in another little compared with it.
constexpr double kMinHeavyNats = 14;
constexpr double kMaxHeavyNats = 19;
// Length of Q's bias in a slow pair of the middling head: about that of the other pairs, so that no
// part of K's noise is amplified.
constexpr double kColumnBias = 4;

constexpr int64_t kHeavyOneIn = 512;
constexpr double kMiddlingHeaviness = 0.75 * kHeaviest;

struct Pairs {
  std::vector<int32_t> bands;
  std::vector<int32_t> columns;
};

Pairs sort_pairs(const ModelConfig& config) {
  Pairs pairs;
  const auto inv_freq = rope_inv_freq(config);
  for (int32_t i = 0; i < config.head_dim / 2; ++i) {
    const double w = inv_freq[static_cast<size_t>(i)];
    if (w <= kFastestColumn) {
      pairs.columns.push_back(i);
    } else if (w <= kFastestBand && w >= kSlowestBand) {
      pairs.bands.push_back(i);
    }
  }
  return pairs;
}

// Writes one head's vectors pair by pair, as complex numbers.
class HeadWriter {
 public:
  HeadWriter(std::vector<float>& values, const ModelConfig& config, int32_t head)
      : pair_(values.data() + int64_t{head} * config.head_dim), half_(config.head_dim / 2) {}

  void set(int32_t pair, double length, double phase) {
    pair_[pair] = static_cast<float>(length * std::cos(phase));
    pair_[pair + half_] = static_cast<float>(length * std::sin(phase));
  }

 private:
  float* pair_;
  int32_t half_;
};

// Phases of K, from which the query heads' phases start: what both share does not affect a score.
double key_phase(uint64_t seed, int32_t kv_head, int32_t pair) {
  return mixed_uniform(mixed_bits(seed, static_cast<uint64_t>(kv_head)),
                       static_cast<uint64_t>(pair), -std::numbers::pi, std::numbers::pi);
}

}  // namespace

SyntheticHeads synthetic_heads(const ModelConfig& config, uint64_t seed, int32_t layer) {
  const Pairs pairs = sort_pairs(config);
  const auto num_bands = static_cast<double>(pairs.bands.size());
  const auto num_columns = static_cast<double>(pairs.columns.size());
  const double root_dim = std::sqrt(config.head_dim);
  const uint64_t keys = mixed_bits(named_seed(seed, "keys"), static_cast<uint64_t>(layer));
  const uint64_t queries = mixed_bits(named_seed(seed, "queries"), static_cast<uint64_t>(layer));

  // A cosine of amplitude a has variance a^2 / 2. In the middling head, Q and K have equal lengths;
  // what a query head draws only scales its own Q.
  constexpr double kBandNats = (kMinBandNats + kMaxBandNats) / 2;
  constexpr double kHeavyNats = (kMinHeavyNats + kMaxHeavyNats) / 2;
  const double band_length = std::sqrt(kBandNats * std::sqrt(2 / num_bands) * root_dim);
  const double heavy_length = kHeavyNats * root_dim / (num_columns * kColumnBias * kHeaviest);

  SyntheticHeads heads;
  const auto dim = static_cast<size_t>(config.head_dim);
  heads.q_bias.resize(static_cast<size_t>(config.num_query_heads) * dim);
  heads.k_bias.resize(static_cast<size_t>(config.num_kv_heads) * dim);
  heads.heavy_key.resize(heads.k_bias.size());
  for (int32_t kv = 0; kv < config.num_kv_heads; ++kv) {
    HeadWriter bias(heads.k_bias, config, kv), heavy(heads.heavy_key, config, kv);
    for (const int32_t i : pairs.bands) {
      bias.set(i, band_length, key_phase(keys, kv, i));
      heavy.set(i, -band_length / kMiddlingHeaviness, key_phase(keys, kv, i));
    }
    for (const int32_t i : pairs.columns) heavy.set(i, heavy_length, key_phase(keys, kv, i));
  }
  for (int32_t h = 0; h < config.num_query_heads; ++h) {
    const int32_t kv = h / config.group_size();
    const uint64_t own = mixed_bits(queries, static_cast<uint64_t>(h));
    const double band_nats = mixed_uniform(own, 0, kMinBandNats, kMaxBandNats);
    const double spread = mixed_uniform(own, 1, kMinSpread, kMaxSpread);
    const double heavy_nats = mixed_uniform(own, 2, kMinHeavyNats, kMaxHeavyNats);
    const uint64_t phases = named_seed(own, "phases");
    HeadWriter bias(heads.q_bias, config, h);
    for (const int32_t i : pairs.bands) {
      const double phase = mixed_uniform(phases, static_cast<uint64_t>(i), -spread, spread);
      bias.set(i, band_nats / kBandNats * band_length, key_phase(keys, kv, i) + phase);
    }
    for (const int32_t i : pairs.columns) {
      bias.set(i, heavy_nats / kHeavyNats * kColumnBias, key_phase(keys, kv, i));
    }
  }
  return heads;
}

float token_heaviness(uint64_t seed, int32_t token) {
  if (token == 0) return kSinkHeaviness;
  const uint64_t own = mixed_bits(named_seed(seed, "heavy tokens"), static_cast<uint64_t>(token));
  if (own % kHeavyOneIn != 0) return 0;
  return static_cast<float>(mixed_uniform(own, 0, 0.5 * kHeaviest, kHeaviest));
}

}  // namespace millrace::model
