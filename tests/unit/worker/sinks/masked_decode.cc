// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/sinks/masked_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "model/generator.h"
#include "plan/head_plan.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "tests/unit/engine/whole_cache.h"

namespace millrace::test {

namespace {

constexpr auto kPatience = std::chrono::minutes(5);

// Softmax in double over the tokens of the kept pages, one token at a time.
class MaskedAttention final : public model::PromptAttention {
 public:
  MaskedAttention(const WholeCache& cache, const model::ModelConfig& config, const KeptPages& kept,
                  int64_t num_tokens)
      : k_(cache.k()), v_(cache.v()), config_(config), kept_(kept), num_tokens_(num_tokens) {}

  void begin_layer(int32_t, const float*, int32_t) override {}
  Result<void> attend(const Step& step, Deadline) override {
    for (int32_t head = 0; head < config_.num_query_heads; ++head) attend_head(step, head);
    return {};
  }

 private:
  void attend_head(const Step& step, int32_t head) {
    const int32_t dim = config_.head_dim;
    const int32_t kv_head = head / (config_.num_query_heads / config_.num_kv_heads);
    double sum = 0;
    std::vector<double> out(static_cast<size_t>(dim));
    for (int64_t token = step.first_token; token < num_tokens_; ++token) {
      if (!kept_.has(step.layer, kv_head, token / 64)) continue;
      const auto row = static_cast<size_t>(
          ((int64_t{step.layer} * config_.num_kv_heads + kv_head) * num_tokens_ + token) * dim);
      double product = 0;
      for (int32_t d = 0; d < dim; ++d) {
        product += double{step.q[head * dim + d]} * double{k_[row + static_cast<size_t>(d)]};
      }
      const double weight = std::exp(product / std::sqrt(static_cast<double>(dim)));
      sum += weight;
      for (size_t d = 0; d < out.size(); ++d) out[d] += weight * double{v_[row + d]};
    }
    step.lse[head] = static_cast<float>(std::log(sum));
    for (int32_t d = 0; d < dim; ++d) {
      step.out[head * dim + d] = static_cast<float>(out[static_cast<size_t>(d)] / sum);
    }
  }

  const std::vector<float> k_, v_;
  const model::ModelConfig& config_;
  const KeptPages& kept_;
  const int64_t num_tokens_;
};

}  // namespace

struct MaskedDecode::Prefilled {
  std::unique_ptr<engine::RankRuntime> runtime;
  std::unique_ptr<WholeCache> cache;
  int64_t num_tokens = 0;
  int32_t first_token = 0;
};

MaskedDecode::MaskedDecode(const std::string& model_directory,
                           const std::vector<int32_t>& token_ids, const std::string& head_plan)
    : prefilled_(std::make_unique<Prefilled>()) {
  auto& p = *prefilled_;
  auto world = comm::LocalGroup::create(1);
  auto runtime =
      engine::RankRuntime::create(std::move(world.front()), rank_options(model_directory, {1, 1}));
  EXPECT_TRUE(runtime.ok()) << runtime.error().to_string();
  p.runtime = std::move(*runtime);
  p.num_tokens = std::ssize(token_ids);
  const auto& weights = p.runtime->weights();
  p.cache = std::make_unique<WholeCache>(weights.config, p.num_tokens);
  WholeCacheSink sink(*p.cache, weights.shard, p.runtime->engine().partition(p.num_tokens), 0);
  const auto plan = plan::make_head_plan(head_plan, weights.config, p.num_tokens, 0, {});
  EXPECT_TRUE(plan.ok()) << plan.error().to_string();
  const auto result = p.runtime->engine().prefill(
      {.token_ids = token_ids, .plan = &*plan, .sink = &sink}, std::chrono::minutes(5));
  EXPECT_TRUE(result.ok()) << result.error().to_string();
  p.first_token = result->first_token;
}

MaskedDecode::~MaskedDecode() = default;

// One page at a time: each head keeps page 0, its last two and its best pages up to half the
// budget. Then the best pages of the layer are kept, by their share of their head's mass.
KeptPages MaskedDecode::choose(double budget) const {
  const auto& config = prefilled_->runtime->weights().config;
  const int64_t num_pages = prefilled_->cache->num_pages();
  const auto wanted = [&](double share) {
    const auto rounded =
        static_cast<int64_t>(std::floor(share * static_cast<double>(num_pages) + 0.5));
    return std::max(rounded, std::min<int64_t>(num_pages, 3));
  };
  KeptPages kept(config.num_layers, config.num_kv_heads, num_pages);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto share = [&](int32_t head, int64_t page) {
      const float* scores = prefilled_->cache->page_scores().data() +
                            (layer * config.num_kv_heads + head) * num_pages;
      return static_cast<float>(scores[page] / std::accumulate(scores, scores + num_pages, 0.0));
    };
    const auto keep_best = [&](int32_t first_head, int32_t end_head) {
      std::tuple<float, int32_t, int64_t> best{-1, 0, 0};
      for (int32_t head = first_head; head < end_head; ++head) {
        for (int64_t page = 0; page < num_pages; ++page) {
          if (kept.has(layer, head, page) || share(head, page) <= std::get<0>(best)) continue;
          best = {share(head, page), head, page};
        }
      }
      kept.keep(layer, std::get<1>(best), std::get<2>(best));
    };
    int64_t left = wanted(budget) * config.num_kv_heads;
    for (int32_t head = 0; head < config.num_kv_heads; ++head) {
      for (const int64_t page : {int64_t{0}, num_pages - 2, num_pages - 1}) {
        if (page >= 0) kept.keep(layer, head, page);
      }
      while (std::ssize(kept.pages(layer, head)) < wanted(budget / 2)) keep_best(head, head + 1);
      left -= std::ssize(kept.pages(layer, head));
    }
    for (; left > 0; --left) keep_best(0, config.num_kv_heads);
  }
  return kept;
}

double MaskedDecode::dropped_mass(const KeptPages& kept) const {
  const auto& scores = prefilled_->cache->page_scores();
  double share = 0;
  size_t at = 0;
  for (int32_t layer = 0; layer < kept.num_layers(); ++layer) {
    for (int32_t head = 0; head < kept.num_kv_heads(); ++head) {
      double all = 0, dropped = 0;
      for (int64_t page = 0; page < kept.num_pages(); ++page, ++at) {
        all += double{scores[at]};
        if (!kept.has(layer, head, page)) dropped += double{scores[at]};
      }
      share += dropped / all;
    }
  }
  return share / (kept.num_layers() * kept.num_kv_heads());
}

std::vector<int32_t> MaskedDecode::generate(const KeptPages& kept, int32_t max_tokens) const {
  const auto& p = *prefilled_;
  const auto& weights = p.runtime->weights();
  const auto& grid = p.runtime->grid();
  MaskedAttention attention(*p.cache, weights.config, kept, p.num_tokens);
  auto generator =
      model::Generator::create(p.runtime->device(), weights, grid.tp(), grid.cp(), max_tokens);
  EXPECT_TRUE(generator.ok()) << generator.error().to_string();
  const auto tokens = generator->generate({.attention = &attention,
                                           .num_prompt_tokens = p.num_tokens,
                                           .first_token = p.first_token,
                                           .max_tokens = max_tokens,
                                           .ignore_eos = true},
                                          [] { return Deadline::after(kPatience); });
  EXPECT_TRUE(tokens.ok()) << tokens.error().to_string();
  return *tokens;
}

std::vector<float> MaskedDecode::page(int32_t layer, int32_t kv_head, int64_t page) const {
  const auto& p = *prefilled_;
  const auto dim = static_cast<size_t>(p.runtime->weights().config.head_dim);
  const int64_t count = std::min<int64_t>(64, p.num_tokens - page * 64);
  std::vector<float> rows(2 * 64 * dim);
  const auto k = p.cache->k_rows(layer, kv_head, page * 64, count);
  const auto v = p.cache->v_rows(layer, kv_head, page * 64, count);
  std::memcpy(rows.data(), k.data(), k.size());
  std::memcpy(rows.data() + 64 * dim, v.data(), v.size());
  return rows;
}

}  // namespace millrace::test
