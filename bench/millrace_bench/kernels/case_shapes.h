// What the cases of `millrace-bench kernels` have in common: rows, heads, room for indexes.
#pragma once

#include <string>
#include <vector>

#include "bench/millrace_bench/kernels/kernel_row.h"
#include "bench/millrace_bench/kernels/sample_layer.h"

namespace millrace::bench {

KernelRow empty_row(const char* name, std::string setting, const LayerShape& shape);
std::vector<int32_t> all_heads(const LayerShape& shape);
int64_t causal_pairs(int64_t num_tokens);  // of one head
std::string budget_text(kernels::VerticalSlashBudget budget);

// Room for as many bands as can be apart, and the columns of a budget.
kernels::IndexShape list_shape(const LayerShape& shape, kernels::VerticalSlashBudget budget);
// Room for half of the causal blocks, as the engine gives.
kernels::IndexShape block_shape(const SampleLayer& layer);

}  // namespace millrace::bench
