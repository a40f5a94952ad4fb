// SPDX-License-Identifier: Apache-2.0
// What deserves faster memory: the pure policy. Pages are ranked; the byte budget cuts the ranking
// off (residency.h).
//
//   sinks       page 0 of the prompt, which every head attends to
//   window      the last 2 pages of the prompt, which the next tokens attend to
//   first layer all pages of layers 0..2: sparsity costs most there, and attention is widest
//   mass        the best pages by score until, with the forced ones, the head's mass reaches 0.95
//   rest        all others, by score
//
// Scores count as shares of the head's sum over the pages of this rank, because heads differ in
// scale and no rank knows the pages of the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kvstore {

inline constexpr int64_t kSinkPages = 1;
inline constexpr int64_t kWindowPages = 2;
inline constexpr int32_t kFirstLayers = 3;
// The threshold of progressive sparse attention (arXiv 2503.00392, epsilon).
inline constexpr double kHeadMass = 0.95;

// In rising order of worth.
enum class Keep : uint8_t { kRest = 0, kMass, kFirstLayer, kWindow, kSink };

// A page pulled this often lately counts as one that carries mass, whatever its score.
inline constexpr uint8_t kRisingHits = 2;
// More hits than this change nothing.
inline constexpr uint8_t kMaxHits = 15;

struct PagePriority {
  Keep keep = Keep::kRest;
  float share = 0;            // of the head's score, [0, 1]; 0 while the page has none
  bool carries_mass = false;  // among the fewest pages that reach kHeadMass, forced or not
  uint8_t hits = 0;           // pulls, each counting half after a while (read_path.h)

  Keep rank() const { return hits >= kRisingHits && keep < Keep::kMass ? Keep::kMass : keep; }
  float weight() const { return share * static_cast<float>(1 + hits); }
  bool operator==(const PagePriority&) const = default;
};
inline bool operator<(const PagePriority& a, const PagePriority& b) {
  return a.rank() != b.rank() ? a.rank() < b.rank() : a.weight() < b.weight();
}

// Whether `page` is worth so much more than `other` that taking its place in memory pays for a read
// and a write: `page` carries mass, is forced or was pulled often, and `other` is of a lower rank
// or has at most half its weight.
bool displaces(const PagePriority& page, const PagePriority& other);

// What is known of a page before it has a score; never kMass.
Keep keep_without_score(int32_t layer, int64_t page, int64_t num_prompt_pages);

// Pages of one layer and kv head, in the order of `pages`; scores.size() == pages.size(), finite
// and not negative.
std::vector<PagePriority> rank_pages(int32_t layer, int64_t num_prompt_pages,
                                     std::span<const int64_t> pages, std::span<const float> scores);

}  // namespace millrace::kvstore
