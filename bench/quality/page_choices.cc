// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/page_choices.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "common/units.h"
#include "kernels/index/closed_form.h"
#include "kvstore/rules/placement.h"

namespace millrace::bench {

using kvstore::PageScores;

namespace {

constexpr int64_t kAlwaysKept = kvstore::kSinkPages + kvstore::kWindowPages;

void keep_best(const PageScores& scores, int32_t layer, int32_t head, int64_t count,
               KeptPages& kept) {
  constexpr float kAlways = 1e30F;
  const auto of_head = scores.of(layer, head);
  std::vector<float> pages(of_head.begin(), of_head.end());
  const auto num_pages = std::ssize(pages);
  for (int64_t page = 0; page < num_pages; ++page) {
    const bool always = page < kvstore::kSinkPages || page >= num_pages - kvstore::kWindowPages;
    if (always) pages[static_cast<size_t>(page)] = kAlways;
  }
  for (const int64_t page : kvstore::largest(pages, count)) kept.keep(layer, head, page);
}

// Each layer has its own budget, and all of its heads keep the same number of pages.
template <typename OfLayer>
KeptPages all_heads_alike(const PageScores& scores, OfLayer budget_of_layer) {
  KeptPages kept(scores.num_layers, scores.num_kv_heads, scores.num_pages);
  for (int32_t layer = 0; layer < scores.num_layers; ++layer) {
    const double budget = std::clamp(budget_of_layer(layer), 0.001, 1.0);
    const int64_t count = kvstore::num_kept_pages(budget, scores.num_pages);
    for (int32_t head = 0; head < scores.num_kv_heads; ++head) {
      keep_best(scores, layer, head, count, kept);
    }
  }
  return kept;
}

// Scores that are higher for newer pages.
PageScores by_age(PageScores scores) {
  for (size_t i = 0; i < scores.values.size(); ++i) {
    scores.values[i] = static_cast<float>(i % static_cast<size_t>(scores.num_pages));
  }
  return scores;
}

int64_t span_of(const plan::HeadPattern& head, int64_t num_tokens) {
  if (head.pattern != plan::Pattern::kElastic) return num_tokens;
  return kernels::elastic_form(head.alpha, head.beta, num_tokens).window;
}

// [layers * kv heads] counts of pages to keep: each span times `scale`, within limits.
std::vector<int64_t> scaled(const std::vector<double>& spans, double scale, int64_t num_pages) {
  std::vector<int64_t> counts;
  for (const double span : spans) {
    constexpr double kRounding = 1e-6;  // the scale is found by halving
    const auto pages = static_cast<int64_t>(span * scale / kernels::kPageTokens + kRounding);
    counts.push_back(std::clamp(pages, std::min(kAlwaysKept, num_pages), num_pages));
  }
  return counts;
}

int64_t total(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

// Counts at the largest scale that keeps no more than `most` pages in all.
std::vector<int64_t> scaled_to(const std::vector<double>& spans, int64_t num_pages, int64_t most) {
  double low = 0;
  double high = 1;
  while (total(scaled(spans, high, num_pages)) < most) high *= 2;
  for (int step = 0; step < 40; ++step) {
    const double middle = (low + high) / 2;
    (total(scaled(spans, middle, num_pages)) <= most ? low : high) = middle;
  }
  return scaled(spans, low, num_pages);
}

}  // namespace

KeptPages keep_alike(double budget, const PageScores& scores) {
  return all_heads_alike(scores, [budget](int32_t) { return budget; });
}

KeptPages keep_at_random(double budget, const PageScores& scores) {
  std::mt19937 random(1);
  auto drawn = scores;
  for (float& page : drawn.values) page = static_cast<float>(random());
  return keep_alike(budget, drawn);
}

KeptPages keep_newest(double budget, const PageScores& scores) {
  return keep_alike(budget, by_age(scores));
}

KeptPages keep_first_layers(double budget, const PageScores& scores) {
  constexpr int32_t kWhole = 3;
  const double rest =
      (budget * scores.num_layers - kWhole) / std::max(1, scores.num_layers - kWhole);
  return all_heads_alike(scores, [rest](int32_t layer) { return layer < kWhole ? 1.0 : rest; });
}

KeptPages keep_pyramid(double budget, const PageScores& scores) {
  return all_heads_alike(scores, [&](int32_t layer) {
    return budget * (1.5 - static_cast<double>(layer) / std::max(1, scores.num_layers - 1));
  });
}

kvstore::PageChoice keep_spans(const plan::HeadPlan& plan, int64_t num_tokens) {
  return [plan, num_tokens](double budget, const PageScores& scores) {
    const int32_t group = plan.num_heads() / scores.num_kv_heads;
    const int64_t num_heads = int64_t{scores.num_layers} * scores.num_kv_heads;
    std::vector<double> spans(static_cast<size_t>(num_heads), 0);
    for (int32_t layer = 0; layer < scores.num_layers; ++layer) {
      for (int32_t head = 0; head < plan.num_heads(); ++head) {
        const int64_t kv_head = int64_t{layer} * scores.num_kv_heads + head / group;
        double& span = spans[static_cast<size_t>(kv_head)];
        span = std::max(span, static_cast<double>(span_of(plan.at(layer, head), num_tokens)));
      }
    }
    const int64_t most = num_heads * kvstore::num_kept_pages(budget, scores.num_pages);
    const auto counts = scaled_to(spans, scores.num_pages, most);
    const auto newest = by_age(scores);
    KeptPages kept(scores.num_layers, scores.num_kv_heads, scores.num_pages);
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto at = static_cast<int32_t>(i);
      keep_best(newest, at / scores.num_kv_heads, at % scores.num_kv_heads, counts[i], kept);
    }
    return kept;
  };
}

}  // namespace millrace::bench
