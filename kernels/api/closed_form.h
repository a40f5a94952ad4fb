// The patterns that need no look at the prompt: their lists follow from its length. Host code; the
// index is in host memory.
#pragma once

#include <cstdint>

#include "kernels/api/index.h"

namespace millrace::kernels {

// The last `window` keys of each row (itself included) and the first `sink` keys.
struct ClosedForm {
  int64_t window = 0;
  int64_t sink = 0;

  bool operator==(const ClosedForm&) const = default;
};

ClosedForm dense_form(int64_t num_tokens);
// StreamingLLM; MInference's A-shape. Both counts >= 1, clamped to num_tokens.
ClosedForm a_shape_form(int64_t sink, int64_t window, int64_t num_tokens);
// MoA: a window of alpha + beta * num_tokens tokens, at least a page and at most everything, and
// the first page. alpha may be negative.
ClosedForm elastic_form(int64_t alpha, double beta, int64_t num_tokens);

// Room that write_closed_form needs: bands 1, columns sink (0 where the window holds everything).
int32_t columns_of(const ClosedForm& form, int64_t num_tokens);

// Writes all lists of local head `head`: a band, the sink's columns, no blocks.
void write_closed_form(const ClosedForm& form, int64_t num_tokens, int32_t head,
                       const IndexView& index);

// Empties all lists of `head`. Estimation writes only the lists that its pattern has: clear a head
// first.
void clear_head(int32_t head, const IndexView& index);

}  // namespace millrace::kernels
