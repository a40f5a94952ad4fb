// SPDX-License-Identifier: Apache-2.0
// Progressive sparse attention (PSA, arXiv 2503.00392) of a decode step over a rank's pages. Each
// kv head's pages are attended in portions, in the order that their digests give for its query
// heads, until a rule says for each of these that the mass attended is enough. The number of pages
// is not given beforehand.
//
// A portion is pinned while it is computed, so a pool of any size will do. What the pool holds, and
// when, decides how long a step takes, never what it computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/dtype.h"
#include "common/kept_pages.h"
#include "common/result.h"
#include "decode/attention/page_digests.h"
#include "decode/attention/page_kernel.h"
#include "decode/pool/page_pool.h"
#include "kernels/pages/page_rule.h"

namespace millrace::decode {

// The cache of one rank.
struct CacheShape {
  int32_t num_layers = 0;
  int32_t first_kv_head = 0;  // of the model
  int32_t num_kv_heads = 0;
  int32_t num_query_heads = 0;
  int32_t head_dim = 0;
  int64_t num_tokens = 0;  // of the prompt
  DType dtype = DType::kFloat32;
  // The pages that exist; null: all. Outlives all copies of the shape.
  const KeptPages* kept = nullptr;

  int64_t num_pages() const;  // of a layer and kv head, kept or not
  // `kv_head` counts in this rank.
  bool has_page(int32_t layer, int32_t kv_head, int64_t page) const {
    return kept == nullptr || kept->has(layer, first_kv_head + kv_head, page);
  }
  std::vector<int32_t> pages(int32_t layer, int32_t kv_head) const;  // ascending
  int32_t group() const { return num_query_heads / num_kv_heads; }
  float scale() const;
};

struct ProgressiveStats {
  int64_t steps = 0;                   // counted at layer 0
  std::vector<int64_t> pages_touched;  // by layer, over all kv heads and steps
};

// The ranking of one kv head's pages for one query.
struct PageRanking {
  std::vector<kernels::PageEstimate> estimates;  // [group, num_pages]
  std::vector<int32_t> order;                    // of the pages that exist
  int64_t num_leading = 0;
};

// The rankings of all kv heads of a layer. `tail_lse`: [query heads], the log mass of what else
// each attends to; null: nothing.
void rank_pages(PageKernel& kernel, const kernels::PageRule& rule, const CacheShape& shape,
                const PageDigests& digests, int32_t layer, const float* q, const float* tail_lse,
                std::vector<PageRanking>& rankings);

class ProgressiveAttention {
 public:
  struct Step {
    int32_t layer = 0;
    // Position in the prompt. If it is not 0, all tokens from it on are attended to: within a
    // layer's window nothing is selected.
    int64_t first_token = 0;
    const float* q = nullptr;         // [query heads, head_dim], in host memory like all the others
    const float* tail_lse = nullptr;  // [query heads] of the tokens after the prompt; -inf: none
    float* out = nullptr;             // [query heads, head_dim] over the prompt's tokens
    float* lse = nullptr;             // [query heads] over what was attended to
  };

  // All arguments outlive it.
  ProgressiveAttention(const CacheShape& shape, const PageDigests& digests, PagePool& pool,
                       PageKernel& kernel, const kernels::PageRule& rule);

  Result<void> attend(const Step& step, Deadline deadline);

  // How many pages of a kv head of this rank are likely to be needed: as many as for the last
  // token. Expected pages are brought in one batch. Any thread.
  int64_t expected_pages(int32_t layer, int32_t kv_head) const { return expected(layer, kv_head); }
  void expect(int32_t layer, int32_t kv_head, int64_t pages) {
    expected(layer, kv_head) = static_cast<int32_t>(pages);
  }
  // The pages that the last layer read of a kv head. Like stats(), only for the thread that
  // attends.
  std::span<const int32_t> pages_read(int32_t kv_head) const {
    const auto at = static_cast<size_t>(kv_head);
    return std::span(rankings_[at].order).first(static_cast<size_t>(attended_[at]));
  }
  const ProgressiveStats& stats() const { return stats_; }

 private:
  struct Head;
  std::atomic<int32_t>& expected(int32_t layer, int32_t kv_head) {
    return expected_[static_cast<size_t>(int64_t{layer} * shape_.num_kv_heads + kv_head)];
  }
  const std::atomic<int32_t>& expected(int32_t layer, int32_t kv_head) const {
    return expected_[static_cast<size_t>(int64_t{layer} * shape_.num_kv_heads + kv_head)];
  }
  void take_pages_from(int32_t layer, int64_t first_token);
  Result<void> bring_expected(int32_t layer, Deadline deadline);
  Result<void> attend_portions(const Step& step, std::span<const int64_t> until, Deadline deadline);
  void attend_pinned(const Step& step, std::span<const kvclient::PageName> names,
                     const PagePool::Pins& pins);
  bool enough(const Step& step, int32_t kv_head);
  void finish(const Step& step, int32_t kv_head);

  const CacheShape shape_;
  const PageDigests& digests_;
  PagePool& pool_;
  PageKernel& kernel_;
  const kernels::PageRule& rule_;
  std::vector<std::atomic<int32_t>> expected_;
  std::vector<PageRanking> rankings_;  // by kv head
  std::vector<int64_t> attended_;      // by kv head
  std::vector<float> max_, sum_;       // by query head
  std::vector<float> log_mass_;        // [query heads, num_pages]
  ProgressiveStats stats_;
};

}  // namespace millrace::decode
