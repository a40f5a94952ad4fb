// SPDX-License-Identifier: Apache-2.0
// What makes the heads of a synthetic model attend to something: biases on Q and K, and a direction
// of K that heavy tokens have. Weights alone would not: scores of random Q and K are noise, softmax
// over them is uniform, and any index then holds only its share of the keys. Trained heads show a
// few diagonals, a local band, and columns that all rows look at; so do these.
//
// Bands. RoPE turns the pair (i, i + head_dim / 2) of a query at t and a key at s by w_i t and w_i
// s, so constant parts of Q and K meet in a score that depends on the offset o = t - s alone:
//   f(o) = sum over i of a_i cos(w_i o + phi_i).
// The pairs used are those with a wavelength of 126 to 628,000 tokens, all at one amplitude, with
// phases drawn for each query head from [-spread, spread]: a random function at scales a factor 1.3
// apart. Its highest peaks take most of the softmax, since its standard deviation (4 to 6 nats)
// exceeds what the same number of independent draws would need for that, sqrt(2 ln n) (Derrida's
// random energy model). Small scales refine large ones, so peaks are clustered: the 6,096 best
// offsets out of 131,072 make some 60 bands, the best 700 about ten. `spread` decides how much of
// the function is at offset 0.
//
// Columns. Hidden coordinate 0 belongs to heavy tokens: no other weight reads it and no layer
// writes it. K's weights turn it into a vector of the pairs that are too slow to move within 2^20
// tokens. Q has a bias there, so every row of a head gives a heavy key the same additional
// `heavy_nats`. The weights also cancel K's bias of the other pairs, by two thirds at least: scores
// add, so a heavy key inside a band would otherwise outweigh all keys that are only heavy or only
// in a band.
//
// Together, at 131,072 tokens and a head dimension of 128 (eight heads of layer 0, indexes from the
// last 64 rows, mass of three rows in the middle):
//   budget      bands     density          mass
//   1000,6096   116-144   0.118 to 0.168   0.983 to 1.000
//   500,700     11-35     0.018 to 0.031   0.888 to 0.999
//   30,800      13-37     0.018 to 0.030   0.399 to 0.993
//   3500,100    1         0.006 to 0.041   0.038 to 0.998
//
// Noise. What the weights add to Q and K gives each score a standard deviation of one to two nats.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config/config.h"

namespace millrace::model {

struct SyntheticHeads {
  std::vector<float> q_bias;     // [num_query_heads, head_dim]
  std::vector<float> k_bias;     // [num_kv_heads, head_dim]
  std::vector<float> heavy_key;  // [num_kv_heads, head_dim]: K's weights of hidden coordinate 0
};

SyntheticHeads synthetic_heads(const ModelConfig& config, uint64_t seed, int32_t layer);

// Hidden coordinate 0 of a token's embedding: for one token in 512 its heaviness, between half of
// kHeaviest and kHeaviest; for all others 0. Token 0 begins prompts and is heavier still: a sink.
inline constexpr float kHeaviest = 8;
inline constexpr float kSinkHeaviness = 10;
float token_heaviness(uint64_t seed, int32_t token);

}  // namespace millrace::model
