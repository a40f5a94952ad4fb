// SPDX-License-Identifier: Apache-2.0
#include "calibrate/ladder.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/check.h"
#include "common/page_tokens.h"
#include "common/units.h"

namespace millrace::calibrate {

namespace {

constexpr int kRungsPerOctave = 8;
constexpr int kSharesPerOctave = 4;         // adaptive: of GAMMA, which moves the cost less
constexpr int64_t kMostSelected = 1 << 16;  // of columns, slashes and pages: the limit of plans
constexpr int32_t kFewestColumns = 30;      // MInference always keeps this many
constexpr int32_t kSinks = 64;

// Three digits: plans are read by people.
float share(double value) {
  return static_cast<float>(std::round(std::clamp(value, 0.001, 1.0) * 1000) / 1000);
}

int32_t whole(double value) {
  return static_cast<int32_t>(std::lround(value));
}

// make(size) for the sizes of a ladder's rungs, from `smallest` to `largest`.
Ladder ladder_of_sizes(double smallest, double largest,
                       const std::function<plan::HeadPattern(double)>& make) {
  Ladder ladder;
  for (int rung = 0;; ++rung) {
    const double size = smallest * std::exp2(static_cast<double>(rung) / kRungsPerOctave);
    const plan::HeadPattern pattern = make(std::min(size, largest));
    if (ladder.empty() || !(ladder.back() == pattern)) ladder.push_back(pattern);
    if (size >= largest) return ladder;
  }
}

void a_shapes(double num_tokens, std::vector<Ladder>& ladders) {
  ladders.push_back(ladder_of_sizes(kPageTokens, num_tokens, [](double window) {
    return plan::HeadPattern{
        .pattern = plan::Pattern::kAShape, .sink = kSinks, .window = whole(window)};
  }));
  ladders.push_back(ladder_of_sizes(kPageTokens, num_tokens, [](double window) {
    const double sinks = std::min<double>(window / 4, kMostSelected);
    return plan::HeadPattern{
        .pattern = plan::Pattern::kAShape, .sink = whole(sinks), .window = whole(window)};
  }));
}

// `size` is the larger of the two numbers.
Ladder vertical_slashes(double columns_to_size, double slashes_to_size, double largest) {
  return ladder_of_sizes(kPageTokens, largest, [=](double size) {
    return plan::HeadPattern{.pattern = plan::Pattern::kVerticalSlash,
                             .verticals = std::max(whole(size * columns_to_size), kFewestColumns),
                             .slashes = whole(size * slashes_to_size)};
  });
}

void block_sparse(double num_pages, std::vector<Ladder>& ladders) {
  ladders.push_back(ladder_of_sizes(1, num_pages, [](double pages) {
    return plan::HeadPattern{.pattern = plan::Pattern::kBlockSparse, .top_k = whole(pages)};
  }));
}

void adaptive(std::vector<Ladder>& ladders) {
  const plan::HeadPattern standard{.pattern = plan::Pattern::kAdaptive};
  Ladder both, far_mass, whole_mass;
  constexpr int kOctaves = 7;
  for (int rung = 0; rung <= kOctaves * kSharesPerOctave; ++rung) {
    const double octaves = static_cast<double>(rung) / kSharesPerOctave - kOctaves;
    plan::HeadPattern pattern = standard;
    pattern.gamma = share(std::exp2(octaves));
    pattern.enough = 1;
    far_mass.push_back(pattern);
    pattern.enough = share(0.8 + 0.1 * (octaves - std::log2(0.2)));
    both.push_back(pattern);
    // The mass that a row may lack is halved at every octave.
    pattern.gamma = 1;
    pattern.enough = share(1 - std::exp2(-static_cast<double>(rung) / kSharesPerOctave));
    if (rung > 0) whole_mass.push_back(pattern);
  }
  for (Ladder* ladder : {&both, &far_mass, &whole_mass}) {
    ladder->erase(std::unique(ladder->begin(), ladder->end()), ladder->end());
    ladders.push_back(std::move(*ladder));
  }
}

}  // namespace

std::vector<Ladder> make_ladders(std::span<const plan::Pattern> patterns, int64_t num_tokens) {
  std::vector<Ladder> ladders;
  const auto tokens = static_cast<double>(num_tokens);
  const auto selected = static_cast<double>(std::min(num_tokens, kMostSelected));
  const auto pages =
      static_cast<double>(std::min(ceil_div(num_tokens, kPageTokens), kMostSelected));
  for (const plan::Pattern pattern : patterns) {
    switch (pattern) {
      case plan::Pattern::kAShape:
        a_shapes(tokens, ladders);
        break;
      case plan::Pattern::kVerticalSlash:
        ladders.push_back(vertical_slashes(0, 1, selected));
        ladders.push_back(vertical_slashes(1.0 / 18, 1, selected));
        ladders.push_back(vertical_slashes(1.0 / 3, 1, selected));
        ladders.push_back(vertical_slashes(1, 1, selected));
        ladders.push_back(vertical_slashes(1, 1.0 / 15, selected));
        break;
      case plan::Pattern::kBlockSparse:
        block_sparse(pages, ladders);
        break;
      case plan::Pattern::kAdaptive:
        adaptive(ladders);
        break;
      case plan::Pattern::kDense:
      case plan::Pattern::kElastic:
        MR_CHECK(false, "no ladder of {}", plan::pattern_name(pattern));
    }
  }
  return ladders;
}

}  // namespace millrace::calibrate
