// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "bench/millrace_bench/kernels/case_shapes.h"
#include "bench/millrace_bench/kernels/kernel_cases.h"

namespace millrace::bench {
namespace {

// Operations of the products of all sampled rows with the keys that they may see: one
// multiplication and one addition each.
double scan_ops(const SampleLayer& layer, int32_t sampled_rows) {
  int64_t pairs = 0;
  for (const auto& tile : layer.tiles()) {
    // The sampled rows are not known here. On average they are those in the middle of the tile.
    pairs +=
        std::min<int64_t>(sampled_rows, tile.num_rows) * (tile.position + tile.num_rows / 2 + 1);
  }
  const auto& shape = layer.shape();
  return 2.0 * static_cast<double>(pairs) * shape.head_dim * shape.num_query_heads;
}

}  // namespace

Result<KernelRow> KernelCases::vertical_slash(const SampleLayer& layer,
                                              kernels::VerticalSlashBudget budget) {
  const auto& shape = layer.shape();
  KernelRow row = empty_row("vertical-slash", budget_text(budget), shape);
  MR_ASSIGN_OR_RETURN(auto index, BenchIndex::create(*device_, list_shape(shape, budget)));
  const auto heads = all_heads(shape);
  const std::vector budgets(heads.size(), budget);
  const int64_t sums_bytes = std::ssize(heads) * shape.num_tokens * 4;
  MR_ASSIGN_OR_RETURN(const auto columns, device_->allocate(sums_bytes));
  MR_ASSIGN_OR_RETURN(const auto diagonals, device_->allocate(sums_bytes));
  const auto last = layer.last_rows();
  MR_ASSIGN_OR_RETURN(const auto lse, device_->allocate(std::ssize(heads) * last.num_rows * 4));
  const auto sum_last_rows = [&] {
    device_->last_row_sums({.last = last,
                            .kv = layer.kv(),
                            .heads = heads,
                            .column_sums = columns.as<float>(),
                            .diagonal_sums = diagonals.as<float>(),
                            .lse = lse.as<float>()});
  };
  const auto build = [&] {
    device_->build_vertical_slash({.column_sums = columns.as<float>(),
                                   .diagonal_sums = diagonals.as<float>(),
                                   .num_tokens = shape.num_tokens,
                                   .heads = heads,
                                   .budgets = budgets,
                                   .index = index.view()});
  };
  sum_last_rows();
  build();
  if (options_.check) {
    const int32_t head = heads.back();
    const LastRowSumsOutput output{.column_sums = columns.as<float>() + head * shape.num_tokens,
                                   .diagonal_sums = diagonals.as<float>() + head * shape.num_tokens,
                                   .lse = lse.as<float>() + head * last.num_rows};
    MR_ASSIGN_OR_RETURN(const auto host, index.download(*device_));
    MR_ASSIGN_OR_RETURN(auto sums, check_last_row_sums(*device_, layer, head, output));
    MR_ASSIGN_OR_RETURN(auto lists,
                        check_vertical_slash(*device_, layer, head, budget, output, host));
    row.checks.push_back(std::move(sums));
    row.checks.push_back(std::move(lists));
  }
  MR_ASSIGN_OR_RETURN(auto sums_part, time("probe", sum_last_rows));
  MR_ASSIGN_OR_RETURN(auto build_part, time("index", build));
  row.parts.push_back(std::move(sums_part));
  row.parts.push_back(std::move(build_part));
  MR_RETURN_IF_ERROR(attention(layer, index, row));
  return row;
}

Result<KernelRow> KernelCases::block_sparse(const SampleLayer& layer, int32_t top_k) {
  const auto heads = all_heads(layer.shape());
  const std::vector top(heads.size(), top_k);
  const BlockPattern pattern{
      .build =
          [&](const kernels::IndexView& index) {
            device_->build_block_sparse({.q = layer.q(),
                                         .num_query_heads = layer.shape().num_query_heads,
                                         .kv = layer.kv(),
                                         .tiles = layer.tiles(),
                                         .heads = heads,
                                         .top_k = top,
                                         .index = index});
          },
      .check =
          [&](const HostIndex& index) {
            return check_block_sparse(*device_, layer, heads.back(), top_k, index);
          }};
  return blocks(layer, pattern,
                empty_row("block-sparse", fmt::format("top {}", top_k), layer.shape()));
}

Result<KernelRow> KernelCases::adaptive(const SampleLayer& layer, const AdaptiveSetting& setting) {
  const auto heads = all_heads(layer.shape());
  const std::vector rules(heads.size(), setting.rule);
  const BlockPattern pattern{
      .build =
          [&](const kernels::IndexView& index) {
            device_->build_adaptive({.q = layer.q(),
                                     .num_query_heads = layer.shape().num_query_heads,
                                     .scale = layer.scale(),
                                     .kv = layer.kv(),
                                     .tiles = layer.tiles(),
                                     .heads = heads,
                                     .rules = rules,
                                     .sampled_rows = setting.sampled_rows,
                                     .index = index});
          },
      .check =
          [&](const HostIndex& index) {
            return check_adaptive(*device_, layer, heads.back(), setting, index);
          },
      .int8_ops = scan_ops(layer, setting.sampled_rows)};
  const auto text =
      fmt::format("{:g},{:g},{}", setting.rule.gamma, setting.rule.enough, setting.sampled_rows);
  return blocks(layer, pattern, empty_row("adaptive", text, layer.shape()));
}

// Estimators write only the block lists, so the other lists are emptied once.
Result<KernelRow> KernelCases::blocks(const SampleLayer& layer, const BlockPattern& pattern,
                                      KernelRow row) {
  MR_ASSIGN_OR_RETURN(auto index, BenchIndex::create(*device_, block_shape(layer)));
  const auto heads = all_heads(layer.shape());
  const std::vector<kernels::ClosedForm> nothing(heads.size());
  device_->build_closed_form({.num_tokens = layer.shape().num_tokens,
                              .heads = heads,
                              .forms = nothing,
                              .index = index.view()});
  pattern.build(index.view());
  if (options_.check) {
    MR_ASSIGN_OR_RETURN(const auto host, index.download(*device_));
    MR_ASSIGN_OR_RETURN(auto found, pattern.check(host));
    row.checks.push_back(std::move(found));
  }
  MR_ASSIGN_OR_RETURN(auto part, time("index", [&] { pattern.build(index.view()); }));
  part.int8_ops = pattern.int8_ops;
  row.parts.push_back(std::move(part));
  MR_RETURN_IF_ERROR(attention(layer, index, row));
  return row;
}

}  // namespace millrace::bench
