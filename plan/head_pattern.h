// SPDX-License-Identifier: Apache-2.0
// What one query head attends to, before any request is seen, and its text form:
//   dense | a-shape:S,W | vertical-slash:V,S | block-sparse:K | elastic:ALPHA,BETA |
//   adaptive[:GAMMA[,ENOUGH[,ROWS]]]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::plan {

enum class Pattern : uint8_t {
  kDense,
  kAShape,         // sink columns and a window (StreamingLLM; MInference's A-shape)
  kVerticalSlash,  // MInference
  kBlockSparse,    // MInference
  kElastic,        // sink block and a window of alpha + beta * N tokens (MoA)
  kAdaptive,       // ours: sampled rows of each row tile scan the true keys
};

std::string_view pattern_name(Pattern pattern);  // as in the text form

// Whether the pattern lists blocks for each row tile. The lists of other patterns serve all rows
// alike.
inline bool uses_blocks(Pattern pattern) {
  return pattern == Pattern::kBlockSparse || pattern == Pattern::kAdaptive;
}

struct HeadPattern {
  Pattern pattern = Pattern::kDense;
  int32_t sink = 0;       // a-shape: leading columns
  int32_t window = 0;     // a-shape: offsets [0, window)
  int32_t verticals = 0;  // vertical-slash
  int32_t slashes = 0;    // vertical-slash
  int32_t top_k = 0;      // block-sparse: pages a row tile
  int32_t alpha = 0;      // elastic: tokens, may be negative
  float beta = 0;         // elastic: share of the prompt, [0, 1]
  // adaptive (kernels/api/estimation.h, AdaptiveRule). Defaults: docs/notebook/estimation.md.
  float gamma = 0.2f;         // share of the mass outside the kept pages, [0, 1]
  float enough = 0.8f;        // share of all mass at which a row needs no more, (0, 1]
  int32_t sampled_rows = 24;  // of a tile: up to 64
  float min_recall = 0;       // not part of the text: a request's or an option's, [0, 1]

  bool operator==(const HeadPattern&) const = default;
};

// Parses one pattern from its text form. kInvalidArgument says what is wrong and which forms exist.
Result<HeadPattern> parse_head_pattern(std::string_view text);
// The text form; parse_head_pattern returns the same pattern for it.
std::string format_head_pattern(const HeadPattern& pattern);
// kInvalidArgument when a number is out of range. Plans from any source go through this check.
Result<HeadPattern> checked_head_pattern(HeadPattern pattern);

// A request may name a plan of one pattern for all heads, or "auto": dense for short prompts,
// adaptive for long ones.
inline constexpr std::string_view kAutoPlan = "auto";
// Whether a request may name `text`: a pattern in its text form, or kAutoPlan.
Result<void> check_plan_text(std::string_view text);

}  // namespace millrace::plan
