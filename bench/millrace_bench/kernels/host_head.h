// SPDX-License-Identifier: Apache-2.0
// K and V of one head, and query rows, in host memory, to check results against.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/millrace_bench/kernels/sample_layer.h"

namespace millrace::bench {

// The device's elements, widened.
struct HostHead {
  std::vector<float> k;  // [num_tokens, head_dim]
  std::vector<float> v;  // [num_tokens, head_dim]; empty when not asked for
};

// `query_head` selects the kv head that it reads.
Result<HostHead> read_head(kernels::Device& device, const SampleLayer& layer, int32_t query_head,
                           bool with_v);
// One row of Q, or of anything with its shape: [head_dim].
Result<std::vector<float>> read_row(kernels::Device& device, const SampleLayer& layer,
                                    const void* rows, int64_t row, int32_t query_head);
Result<std::vector<float>> read_floats(kernels::Device& device, const float* values, int64_t count);

}  // namespace millrace::bench
