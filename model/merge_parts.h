// SPDX-License-Identifier: Apache-2.0
// Merges attention over parts of a set of keys into attention over the whole set.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::model {

// out = sum_i w_i out_i with w_i = exp(lse_i) / sum exp(lse): the softmax over the union of
// disjoint parts. A part is [heads * head_dim] of out, then [heads] of lse. `sinks`: [heads] or
// none, a further part of each head, without a value (kernels::AttentionParams::sinks). Float32.
void merge_parts(std::span<const float> parts, int64_t num_parts, int32_t num_heads,
                 int32_t head_dim, std::span<const float> sinks, float* out);

}  // namespace millrace::model
