// SPDX-License-Identifier: Apache-2.0
// Patterns that do not depend on the prompt's contents: their lists follow from its length.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/index/index.h"

namespace millrace::kernels {

// The last `window` keys of each row (itself included) and the first `sink` keys. A window of 0 means no
// pattern: no band and no columns.
struct ClosedForm {
  int64_t window = 0;
  int64_t sink = 0;

  bool operator==(const ClosedForm&) const = default;
};

ClosedForm dense_form(int64_t num_tokens);
// StreamingLLM; MInference's A-shape. A window of at least 1; both are clamped to num_tokens.
ClosedForm a_shape_form(int64_t sink, int64_t window, int64_t num_tokens);
// MoA: a window of alpha + beta * num_tokens tokens, at least a page and at most everything, and
// the first page. alpha may be negative.
ClosedForm elastic_form(int64_t alpha, double beta, int64_t num_tokens);

// Room that write_closed_form needs: bands 1, columns sink (0 where the window holds everything).
int32_t columns_of(const ClosedForm& form, int64_t num_tokens);

// Empties all lists of `heads` and writes those that follow from the length. Runs before any estimation,
// which writes only the lists that its pattern has.
struct ClosedFormParams {
  int64_t num_tokens = 0;
  std::span<const int32_t> heads;
  std::span<const ClosedForm> forms;  // [heads.size()]
  IndexView index;
};

// For an index in host memory, all heads of `params` or one of them: a band, the sink's columns, no
// blocks.
void write_closed_forms(const ClosedFormParams& params);
void write_closed_form(const ClosedForm& form, int64_t num_tokens, int32_t head,
                       const IndexView& index);

// Empties all lists of `head` of an index in host memory.
void clear_head(int32_t head, const IndexView& index);

}  // namespace millrace::kernels
