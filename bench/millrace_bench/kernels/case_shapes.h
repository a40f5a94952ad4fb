// SPDX-License-Identifier: Apache-2.0
// What the cases of `millrace-bench kernels` have in common: rows, heads, room for indexes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/millrace_bench/kernels/kernel_row.h"
#include "bench/millrace_bench/kernels/sample_layer.h"

namespace millrace::bench {

// The linear layers of an 8B model.
inline constexpr int64_t kHidden = 4096, kFfn = 14336;
struct LinearShape {
  const char* name;
  int64_t num_outputs, num_inputs;
};
inline constexpr std::array<LinearShape, 4> kLinearLayers{{{"qkv", 6144, kHidden},
                                                           {"o", kHidden, kHidden},
                                                           {"gate+up", 2 * kFfn, kHidden},
                                                           {"down", kHidden, kFfn}}};

KernelRow empty_row(const char* name, std::string setting, const LayerShape& shape);
std::vector<int32_t> all_heads(const LayerShape& shape);
int64_t causal_pairs(int64_t num_tokens);  // of one head
std::string budget_text(kernels::VerticalSlashBudget budget);

// Room for as many separate bands as there can be, and for the columns of the budget.
kernels::IndexShape list_shape(const LayerShape& shape, kernels::VerticalSlashBudget budget);
// Room for half of the causal blocks, as in the engine.
kernels::IndexShape block_shape(const SampleLayer& layer);

}  // namespace millrace::bench
