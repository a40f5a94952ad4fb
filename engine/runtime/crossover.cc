// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/crossover.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/index/layer_index.h"
#include "kernels/index/closed_form.h"
#include "model/checkpoint/element_conversion.h"

namespace millrace::engine {

namespace {

// Below this length the pages that are always kept and the dense last rows are a fourth of all
// pairs or more, and launches use up what one head's group gains. On an H100, a prompt of 1,024
// tokens took 10 % longer than densely, one of 2,048 took 4 % longer, and one of 4,096 took equally
// long.
constexpr int64_t kShortest = 4096;
constexpr int64_t kLongest = 32768;

// Q, K and V of one kv head's group. Keys of a page share a direction, and the queries of a tile
// point at their own page and one earlier, as retrieval does; independent random keys would make
// attention uniform and any index dense.
struct Sample {
  kernels::DeviceBuffer q, k, v, out;
  kernels::KvSlab kv;
  int32_t group = 0;
  float scale = 0;
  std::vector<kernels::RowTile> tiles;
};

Result<kernels::DeviceBuffer> upload(kernels::Device& device, const std::vector<float>& values,
                                     DType dtype) {
  const auto bytes = static_cast<int64_t>(values.size()) * dtype_bytes(dtype);
  MR_ASSIGN_OR_RETURN(auto buffer, device.allocate(bytes));
  std::vector<std::byte> rounded(static_cast<size_t>(bytes));
  model::convert_elements(std::as_bytes(std::span(values)).data(), DType::kFloat32,
                          std::ssize(values), rounded.data(), dtype);
  device.copy(buffer.data(), rounded.data(), bytes);
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(std::chrono::minutes(1))));
  return buffer;
}

Result<Sample> make_sample(kernels::Device& device, const model::ModelWeights& weights,
                           int64_t num_tokens) {
  const int32_t head_dim = weights.config.head_dim;
  const int32_t group = weights.config.group_size();
  std::mt19937 random(7);  // any seed: only the structure matters
  std::normal_distribution<float> normal;
  std::vector<float> direction(static_cast<size_t>(num_tokens / kernels::kPageTokens * head_dim));
  for (float& x : direction) x = normal(random);

  std::vector<float> q, k, v;
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int64_t page = token / kernels::kPageTokens;
    const float* own = direction.data() + page * head_dim;
    const float* earlier = direction.data() + page * 7 / 10 * head_dim;
    for (int32_t d = 0; d < head_dim; ++d) {
      k.push_back(own[d] + 0.3f * normal(random));
      v.push_back(normal(random));
    }
    for (int32_t i = 0; i < group * head_dim; ++i) {
      q.push_back(own[i % head_dim] + earlier[i % head_dim] + 0.1f * normal(random));
    }
  }
  const DType dtype = weights.compute_dtype;
  Sample sample{.group = group,
                .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                .tiles = kernels::tile_rows(num_tokens)};
  MR_ASSIGN_OR_RETURN(sample.q, upload(device, q, dtype));
  MR_ASSIGN_OR_RETURN(sample.k, upload(device, k, dtype));
  MR_ASSIGN_OR_RETURN(sample.v, upload(device, v, dtype));
  MR_ASSIGN_OR_RETURN(sample.out, device.allocate(sample.q.bytes()));
  sample.kv = {.k = sample.k.data(),
               .v = sample.v.data(),
               .dtype = dtype,
               .num_kv_heads = 1,
               .head_dim = head_dim,
               .num_tokens = num_tokens,
               .token_stride = num_tokens};
  return sample;
}

// Time for index and attention of the sample under `pattern`: the faster of two runs, the first of
// which also warms up.
Result<double> time_pattern(kernels::Device& device, const Sample& sample,
                            const plan::HeadPattern& pattern) {
  const plan::HeadPlan plan(1, sample.group, pattern);
  MR_ASSIGN_OR_RETURN(const auto index, LayerIndex::create(device, plan, 0, sample.group,
                                                           sample.kv.num_tokens, sample.tiles));
  std::vector<int32_t> heads;
  for (int32_t h = 0; h < sample.group; ++h) heads.push_back(h);
  const std::vector<kernels::AdaptiveRule> rules(heads.size(), plan::adaptive_rule(pattern));
  const bool dense = pattern.pattern == plan::Pattern::kDense;
  const std::vector<kernels::ClosedForm> forms(
      heads.size(), dense ? kernels::dense_form(sample.kv.num_tokens) : kernels::ClosedForm{});
  double best_s = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 2; ++run) {
    Stopwatch watch;
    device.build_closed_form({.num_tokens = sample.kv.num_tokens,
                              .heads = heads,
                              .forms = forms,
                              .index = index.view()});
    if (!dense) {
      device.build_adaptive({.q = sample.q.data(),
                             .num_query_heads = sample.group,
                             .scale = sample.scale,
                             .kv = sample.kv,
                             .tiles = sample.tiles,
                             .heads = heads,
                             .rules = rules,
                             .sampled_rows = pattern.sampled_rows,
                             .index = index.view()});
    }
    device.attention({.q = sample.q.data(),
                      .num_rows = sample.kv.num_tokens,
                      .num_query_heads = sample.group,
                      .scale = sample.scale,
                      .kv = sample.kv,
                      .tiles = sample.tiles,
                      .index = index.view(),
                      .out = sample.out.data()});
    MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(std::chrono::minutes(1))));
    best_s = std::min(best_s, watch.elapsed_s());
  }
  return best_s;
}

}  // namespace

Result<int64_t> measure_crossover(kernels::Device& device, const model::ModelWeights& weights) {
  MR_ASSIGN_OR_RETURN(const auto adaptive, plan::parse_head_pattern("adaptive"));
  for (int64_t tokens = kShortest; tokens <= kLongest; tokens *= 2) {
    MR_ASSIGN_OR_RETURN(const auto sample, make_sample(device, weights, tokens));
    MR_ASSIGN_OR_RETURN(const double dense_s, time_pattern(device, sample, {}));
    MR_ASSIGN_OR_RETURN(const double adaptive_s, time_pattern(device, sample, adaptive));
    if (adaptive_s < dense_s) return tokens;
  }
  return kNoCrossover;
}

}  // namespace millrace::engine
