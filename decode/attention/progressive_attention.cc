// SPDX-License-Identifier: Apache-2.0
#include "decode/attention/progressive_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/page_tokens.h"
#include "common/units.h"

namespace millrace::decode {

namespace {

using kvclient::PageName;

constexpr float kNothing = -std::numeric_limits<float>::infinity();
// Pages beyond the expected number that are fetched with those needed: a few portions, so that a
// head whose expectation was too low does not wait for each.
constexpr int64_t kAhead = 8;
constexpr int64_t kAheadShare = 4;

float log_add(float a, float b) {
  const float most = std::max(a, b);
  return most == kNothing ? kNothing : most + std::log(std::exp(a - most) + std::exp(b - most));
}

// Leading pages first, then by the largest share of any query head's mass, as far as digests tell;
// among equals the first. `ranking.order` holds the existing pages, ascending.
void order_pages(const kernels::PageRule& rule, int32_t group, const float* tail_lse,
                 PageRanking& ranking) {
  const auto num_pages = ranking.estimates.size() / static_cast<size_t>(group);
  std::vector<float> keys(num_pages, kNothing);
  for (int32_t head = 0; head < group; ++head) {
    const kernels::PageEstimate* const estimates =
        ranking.estimates.data() + static_cast<size_t>(head) * num_pages;
    float total = tail_lse == nullptr ? kNothing : tail_lse[head];
    float most = total;
    for (const int32_t page : ranking.order) most = std::max(most, rule.rank(estimates[page]));
    double sum = std::exp(double{total} - most);
    for (const int32_t page : ranking.order) sum += std::exp(rule.rank(estimates[page]) - most);
    total = most + static_cast<float>(std::log(sum));
    for (const int32_t page : ranking.order) {
      auto& key = keys[static_cast<size_t>(page)];
      key = std::max(key, rule.rank(estimates[page]) - total);
    }
  }
  const auto led = std::stable_partition(
      ranking.order.begin(), ranking.order.end(),
      [&](int32_t page) { return rule.leads(page, static_cast<int64_t>(num_pages)); });
  ranking.num_leading = led - ranking.order.begin();
  std::stable_sort(led, ranking.order.end(), [&](int32_t a, int32_t b) {
    return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
  });
}

}  // namespace

int64_t CacheShape::num_pages() const {
  return ceil_div(num_tokens, kPageTokens);
}

std::vector<int32_t> CacheShape::pages(int32_t layer, int32_t kv_head) const {
  std::vector<int32_t> pages;
  for (int64_t page = 0; page < num_pages(); ++page) {
    if (has_page(layer, kv_head, page)) pages.push_back(static_cast<int32_t>(page));
  }
  return pages;
}

float CacheShape::scale() const {
  return 1.0F / std::sqrt(static_cast<float>(head_dim));
}

void rank_pages(PageKernel& kernel, const kernels::PageRule& rule, const CacheShape& shape,
                const PageDigests& digests, int32_t layer, const float* q, const float* tail_lse,
                std::vector<PageRanking>& rankings) {
  const auto num_pages = static_cast<size_t>(shape.num_pages());
  rankings.resize(static_cast<size_t>(shape.num_kv_heads));
  std::vector<EstimateItem> items;
  for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
    auto& ranking = rankings[static_cast<size_t>(h)];
    ranking.estimates.resize(num_pages * static_cast<size_t>(shape.group()));
    ranking.order = shape.pages(layer, h);
    items.push_back({.q = q + int64_t{h} * shape.group() * shape.head_dim,
                     .num_heads = shape.group(),
                     .head_dim = shape.head_dim,
                     .scale = shape.scale(),
                     .digests = digests.of(layer, h),
                     .num_pages = shape.num_pages(),
                     .num_tokens = shape.num_tokens,
                     .estimates = ranking.estimates.data()});
  }
  kernel.estimate(items);
  for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
    order_pages(rule, shape.group(), tail_lse == nullptr ? nullptr : tail_lse + h * shape.group(),
                rankings[static_cast<size_t>(h)]);
  }
}

ProgressiveAttention::ProgressiveAttention(const CacheShape& shape, const PageDigests& digests,
                                           PagePool& pool, PageKernel& kernel,
                                           const kernels::PageRule& rule)
    : shape_(shape),
      digests_(digests),
      pool_(pool),
      kernel_(kernel),
      rule_(rule),
      expected_(static_cast<size_t>(shape.num_layers * shape.num_kv_heads)),
      attended_(static_cast<size_t>(shape.num_kv_heads)),
      max_(static_cast<size_t>(shape.num_query_heads)),
      sum_(static_cast<size_t>(shape.num_query_heads)),
      log_mass_(static_cast<size_t>(shape.num_query_heads * shape.num_pages())) {
  stats_.pages_touched.resize(static_cast<size_t>(shape.num_layers));
}

Result<void> ProgressiveAttention::attend(const Step& step, Deadline deadline) {
  if (step.layer == 0) ++stats_.steps;
  if (step.first_token == 0) {
    rank_pages(kernel_, rule_, shape_, digests_, step.layer, step.q, step.tail_lse, rankings_);
  } else {
    take_pages_from(step.layer, step.first_token);
  }
  std::fill(attended_.begin(), attended_.end(), 0);
  std::fill(max_.begin(), max_.end(), kNothing);
  std::fill(sum_.begin(), sum_.end(), 0.0F);
  std::fill_n(step.out, int64_t{shape_.num_query_heads} * shape_.head_dim, 0.0F);
  MR_RETURN_IF_ERROR(bring_expected(step.layer, deadline));

  const auto num_pages = [this](size_t h) { return std::ssize(rankings_[h].order); };
  std::vector<int64_t> until(attended_.size());
  std::vector<bool> done(attended_.size());
  for (bool all_done = false; !all_done;) {
    all_done = true;
    for (size_t h = 0; h < until.size(); ++h) {
      until[h] = done[h] ? attended_[h]
                         : std::min(num_pages(h), attended_[h] + rule_.portion(attended_[h]));
    }
    MR_RETURN_IF_ERROR(attend_portions(step, until, deadline));
    for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
      const auto at = static_cast<size_t>(h);
      if (!done[at])
        done[at] = attended_[at] == num_pages(at) || (step.first_token == 0 && enough(step, h));
      all_done &= done[at];
    }
  }
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) finish(step, h);
  return {};
}

void ProgressiveAttention::take_pages_from(int32_t layer, int64_t first_token) {
  const bool reaches = first_token < shape_.num_tokens;
  const int64_t first_page = reaches ? first_token / kPageTokens : shape_.num_pages();
  rankings_.resize(static_cast<size_t>(shape_.num_kv_heads));
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
    auto& ranking = rankings_[static_cast<size_t>(h)];
    ranking.order = shape_.pages(layer, h);
    std::erase_if(ranking.order, [first_page](int32_t page) { return page < first_page; });
    ranking.num_leading = 0;
  }
}

// Brings a layer's missing pages in one batch. They need not stay: each portion is acquired.
Result<void> ProgressiveAttention::bring_expected(int32_t layer, Deadline deadline) {
  std::vector<PageName> names;
  // Takes the heads in turn, each head's first pages first, up to half the pool: the other half
  // keeps pages of other layers.
  const auto most = static_cast<size_t>(std::max<int64_t>(1, pool_.num_slots() / 2));
  for (int64_t i = 0; i < shape_.num_pages() && names.size() < most; ++i) {
    const size_t before = names.size();
    for (int32_t h = 0; h < shape_.num_kv_heads && names.size() < most; ++h) {
      const auto& order = rankings_[static_cast<size_t>(h)].order;
      if (i >= std::min<int64_t>(expected(layer, h), std::ssize(order))) continue;
      names.push_back({layer, shape_.first_kv_head + h, order[static_cast<size_t>(i)]});
    }
    if (names.size() == before) break;
  }
  const auto brought = pool_.bring(names, FetchUrgency::kNeed, deadline);
  return brought.status();
}

// Attends up to until[h] pages of each kv head, in batches that the pool can hold.
Result<void> ProgressiveAttention::attend_portions(const Step& step, std::span<const int64_t> until,
                                                   Deadline deadline) {
  std::vector<PageName> names, ahead;
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
    const auto at = static_cast<size_t>(h);
    const auto& order = rankings_[at].order;
    bool missing = false;
    for (int64_t i = attended_[at]; i < until[at]; ++i) {
      names.push_back({step.layer, shape_.first_kv_head + h, order[static_cast<size_t>(i)]});
      missing = missing || !pool_.has(names.back());
    }
    if (!missing) continue;
    const int64_t end =
        std::min<int64_t>(std::ssize(order), until[at] + std::max(kAhead, until[at] / kAheadShare));
    for (int64_t i = attended_[at]; i < end; ++i) {
      ahead.push_back({step.layer, shape_.first_kv_head + h, order[static_cast<size_t>(i)]});
    }
  }
  if (std::ssize(ahead) <= pool_.num_slots() / 2) {
    const auto brought = pool_.bring(ahead, FetchUrgency::kNeed, deadline);
    if (!brought.ok()) return brought.error();
  }
  const auto batch = static_cast<size_t>(std::max<int64_t>(1, pool_.num_slots() / 2));
  for (size_t first = 0; first < names.size(); first += batch) {
    const auto part = std::span(names).subspan(first, std::min(batch, names.size() - first));
    MR_ASSIGN_OR_RETURN(const auto pins, pool_.acquire(part, deadline));
    attend_pinned(step, part, pins);
  }
  return {};
}

// `names` are ordered by kv head, then as in its ranking.
void ProgressiveAttention::attend_pinned(const Step& step, std::span<const PageName> names,
                                         const PagePool::Pins& pins) {
  std::vector<PageRows> rows(names.size());
  std::vector<float> masses(names.size() * static_cast<size_t>(shape_.group()));
  std::vector<AttendItem> items;
  const auto dim = int64_t{shape_.head_dim};
  for (size_t i = 0; i < names.size(); ++i) {
    const int64_t page_begin = names[i].page * kPageTokens;
    const int64_t first = std::max<int64_t>(0, step.first_token - page_begin);
    rows[i] = {.k_then_v = pins.page(i),
               .num_tokens = std::min<int64_t>(kPageTokens, shape_.num_tokens - page_begin) - first,
               .first_token = first};
    if (i > 0 && names[i].kv_head == names[i - 1].kv_head) {
      items.back().pages = {items.back().pages.data(), items.back().pages.size() + 1};
      continue;
    }
    const int64_t head = int64_t{names[i].kv_head - shape_.first_kv_head} * shape_.group();
    items.push_back({.q = step.q + head * dim,
                     .num_heads = shape_.group(),
                     .head_dim = shape_.head_dim,
                     .scale = shape_.scale(),
                     .dtype = shape_.dtype,
                     .pages = {rows.data() + i, 1},
                     .state = {.max = max_.data() + head,
                               .sum = sum_.data() + head,
                               .out = step.out + head * dim},
                     .log_mass = masses.data() + i * static_cast<size_t>(shape_.group())});
  }
  kernel_.attend(items);
  for (size_t i = 0; i < names.size(); ++i) {
    const int32_t kv_head = names[i].kv_head - shape_.first_kv_head;
    ++attended_[static_cast<size_t>(kv_head)];
    for (int32_t g = 0; g < shape_.group(); ++g) {
      log_mass_[static_cast<size_t>((int64_t{kv_head} * shape_.group() + g) * shape_.num_pages() +
                                    names[i].page)] =
          masses[i * static_cast<size_t>(shape_.group()) + static_cast<size_t>(g)];
    }
  }
}

// Whether each query head of the kv head has enough.
bool ProgressiveAttention::enough(const Step& step, int32_t kv_head) {
  const auto& ranking = rankings_[static_cast<size_t>(kv_head)];
  const auto num_pages = static_cast<size_t>(shape_.num_pages());
  for (int32_t g = 0; g < shape_.group(); ++g) {
    const auto head = static_cast<size_t>(int64_t{kv_head} * shape_.group() + g);
    const float prompt = max_[head] + std::log(sum_[head]);
    const float tail = step.tail_lse == nullptr ? kNothing : step.tail_lse[head];
    const kernels::RuleView view{
        .estimates =
            std::span(ranking.estimates).subspan(static_cast<size_t>(g) * num_pages, num_pages),
        .log_mass = std::span(log_mass_).subspan(head * num_pages, num_pages),
        .order = ranking.order,
        .num_attended = attended_[static_cast<size_t>(kv_head)],
        .num_leading = std::min(ranking.num_leading, attended_[static_cast<size_t>(kv_head)]),
        .log_attended = log_add(prompt, tail)};
    if (!rule_.enough(view)) return false;
  }
  return true;
}

void ProgressiveAttention::finish(const Step& step, int32_t kv_head) {
  const int64_t attended = attended_[static_cast<size_t>(kv_head)];
  stats_.pages_touched[static_cast<size_t>(step.layer)] += attended;
  expect(step.layer, kv_head, attended);
  for (int32_t g = 0; g < shape_.group(); ++g) {
    const auto head = static_cast<size_t>(int64_t{kv_head} * shape_.group() + g);
    step.lse[head] = max_[head] + std::log(sum_[head]);
    float* const out = step.out + static_cast<int64_t>(head) * shape_.head_dim;
    if (sum_[head] == 0) continue;  // the window has no token of the prompt
    for (int32_t d = 0; d < shape_.head_dim; ++d) out[d] /= sum_[head];
  }
}

}  // namespace millrace::decode
