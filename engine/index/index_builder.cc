// SPDX-License-Identifier: Apache-2.0
#include "engine/index/index_builder.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "common/units.h"
#include "kernels/index/closed_form.h"

namespace millrace::engine {

using plan::Pattern;

namespace {

// The form for patterns whose lists follow from the length alone; none for others.
std::optional<kernels::ClosedForm> closed_form(const plan::HeadPattern& head, int64_t num_tokens) {
  switch (head.pattern) {
    case Pattern::kDense:
      return kernels::dense_form(num_tokens);
    case Pattern::kAShape:
      return kernels::a_shape_form(head.sink, head.window, num_tokens);
    case Pattern::kElastic:
      return kernels::elastic_form(head.alpha, head.beta, num_tokens);
    case Pattern::kVerticalSlash:
    case Pattern::kBlockSparse:
    case Pattern::kAdaptive:
      break;
  }
  return std::nullopt;
}

// A head is sent as its two counts and its two lists at full capacity: kilobytes, of the same size
// on all ranks.
struct List {
  void* data;  // [heads] of head_bytes
  int64_t head_bytes;
  int64_t packed_offset;  // within a packed head
};

std::array<List, 4> lists_of(const kernels::IndexView& index) {
  std::array<List, 4> lists = {
      List{index.num_bands, int64_t{sizeof(int32_t)}, 0},
      List{index.num_columns, int64_t{sizeof(int32_t)}, 0},
      List{index.bands, index.shape.max_bands * int64_t{sizeof(kernels::Band)}, 0},
      List{index.columns, index.shape.max_columns * int64_t{sizeof(int32_t)}, 0}};
  for (size_t i = 1; i < lists.size(); ++i) {
    lists[i].packed_offset = lists[i - 1].packed_offset + lists[i - 1].head_bytes;
  }
  return lists;
}

int64_t packed_head_bytes(const kernels::IndexShape& shape) {
  const auto lists = lists_of({.shape = shape});
  return lists.back().packed_offset + lists.back().head_bytes;
}

}  // namespace

Result<IndexBuilder> IndexBuilder::create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                          const plan::HeadPlan& plan, HeadRange heads,
                                          int64_t num_tokens, const kernels::IndexShape& shape) {
  IndexBuilder builder(device, cp, plan, heads);
  int64_t max_heads = 0;  // vertical-slash heads that one layer may deal to this rank
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    const auto slash_heads = builder.heads_of(layer, Pattern::kVerticalSlash);
    max_heads = std::max(max_heads, ceil_div(std::ssize(slash_heads), cp.size()));
  }
  const int64_t sums_bytes = max_heads * num_tokens * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(builder.column_sums_, device.allocate(sums_bytes));
  MR_ASSIGN_OR_RETURN(builder.diagonal_sums_, device.allocate(sums_bytes));
  MR_ASSIGN_OR_RETURN(builder.last_row_lse_,
                      device.allocate(max_heads * kernels::kLastRows * int64_t{sizeof(float)}));
  if (cp.size() > 1) {
    builder.packed_bytes_ = max_heads * packed_head_bytes(shape);
    MR_ASSIGN_OR_RETURN(builder.packed_, device.allocate(cp.size() * builder.packed_bytes_));
  }
  return builder;
}

std::vector<int32_t> IndexBuilder::heads_of(int32_t layer, Pattern wanted) const {
  std::vector<int32_t> heads;
  for (int32_t h = 0; h < heads_.count; ++h) {
    if (pattern(layer, h).pattern == wanted) heads.push_back(h);
  }
  return heads;
}

void IndexBuilder::closed_forms(int64_t num_tokens, std::span<const kernels::ClosedForm> forms,
                                const kernels::IndexView& index) {
  std::vector<int32_t> heads(static_cast<size_t>(heads_.count));
  std::iota(heads.begin(), heads.end(), 0);
  device_->build_closed_form(
      {.num_tokens = num_tokens, .heads = heads, .forms = forms, .index = index});
}

void IndexBuilder::build_dense(int64_t num_tokens, const kernels::IndexView& index) {
  const std::vector forms(static_cast<size_t>(heads_.count), kernels::dense_form(num_tokens));
  closed_forms(num_tokens, forms, index);
}

Result<void> IndexBuilder::build(int32_t layer, const LocalQueries& queries,
                                 std::span<const kernels::RowTile> tiles,
                                 const kernels::LastRows& last, const kernels::KvSlab& kv,
                                 const kernels::IndexView& index, Deadline deadline) {
  std::vector<kernels::ClosedForm> forms;
  for (int32_t h = 0; h < heads_.count; ++h) {
    forms.push_back(closed_form(pattern(layer, h), kv.num_tokens).value_or(kernels::ClosedForm{}));
  }
  closed_forms(kv.num_tokens, forms, index);
  const auto slash_heads = heads_of(layer, Pattern::kVerticalSlash);
  if (!slash_heads.empty()) {
    MR_RETURN_IF_ERROR(vertical_slash(layer, slash_heads, last, kv, index, deadline));
  }
  if (const auto heads = heads_of(layer, Pattern::kBlockSparse); !heads.empty()) {
    std::vector<int32_t> top_k;
    for (const int32_t h : heads) top_k.push_back(pattern(layer, h).top_k);
    device_->build_block_sparse({.q = queries.q,
                                 .num_query_heads = queries.num_query_heads,
                                 .kv = kv,
                                 .tiles = tiles,
                                 .heads = heads,
                                 .top_k = top_k,
                                 .index = index});
  }
  if (const auto heads = heads_of(layer, Pattern::kAdaptive); !heads.empty()) {
    adaptive(layer, heads, queries, tiles, kv, index);
  }
  return {};
}

void IndexBuilder::adaptive(int32_t layer, const std::vector<int32_t>& heads,
                            const LocalQueries& queries, std::span<const kernels::RowTile> tiles,
                            const kernels::KvSlab& kv, const kernels::IndexView& index) {
  // One launch for each value of sampled_rows; in practice a plan has one.
  std::map<int32_t, std::vector<int32_t>> by_rows;
  for (const int32_t h : heads) by_rows[pattern(layer, h).sampled_rows].push_back(h);
  for (const auto& [sampled_rows, members] : by_rows) {
    std::vector<kernels::AdaptiveRule> rules;
    for (const int32_t h : members) rules.push_back(plan::adaptive_rule(pattern(layer, h)));
    device_->build_adaptive({.q = queries.q,
                             .num_query_heads = queries.num_query_heads,
                             .scale = queries.scale,
                             .kv = kv,
                             .tiles = tiles,
                             .heads = members,
                             .rules = rules,
                             .sampled_rows = sampled_rows,
                             .index = index});
  }
}

Result<void> IndexBuilder::vertical_slash(int32_t layer, const std::vector<int32_t>& heads,
                                          const kernels::LastRows& last, const kernels::KvSlab& kv,
                                          const kernels::IndexView& index, Deadline deadline) {
  std::vector<int32_t> own;
  std::vector<kernels::VerticalSlashBudget> budgets;
  for (size_t i = static_cast<size_t>(cp_->rank()); i < heads.size();
       i += static_cast<size_t>(cp_->size())) {
    own.push_back(heads[i]);
    const auto& head = pattern(layer, heads[i]);
    budgets.push_back({head.verticals, head.slashes});
  }
  if (!own.empty()) {
    device_->last_row_sums({.last = last,
                            .kv = kv,
                            .heads = own,
                            .column_sums = column_sums_.as<float>(),
                            .diagonal_sums = diagonal_sums_.as<float>(),
                            .lse = last_row_lse_.as<float>()});
    device_->build_vertical_slash({.column_sums = column_sums_.as<float>(),
                                   .diagonal_sums = diagonal_sums_.as<float>(),
                                   .num_tokens = kv.num_tokens,
                                   .heads = own,
                                   .budgets = budgets,
                                   .index = index});
  }
  if (cp_->size() == 1) return {};
  return exchange_lists(heads, index, deadline);
}

// Rank r has built the lists of heads[r], heads[r + P], ... and packs them in this order.
Result<void> IndexBuilder::exchange_lists(const std::vector<int32_t>& heads,
                                          const kernels::IndexView& index, Deadline deadline) {
  const int num_ranks = cp_->size();
  const auto head_bytes = packed_head_bytes(index.shape);
  const auto lists = lists_of(index);
  for (const auto& list : lists) {
    std::vector<kernels::CopyPiece> pieces;
    int64_t slot = cp_->rank() * packed_bytes_ + list.packed_offset;
    for (size_t i = static_cast<size_t>(cp_->rank()); i < heads.size();
         i += static_cast<size_t>(num_ranks), slot += head_bytes) {
      pieces.push_back(
          {.destination = slot, .source = heads[i] * list.head_bytes, .bytes = list.head_bytes});
    }
    device_->copy_pieces({.destination = packed_.data(), .source = list.data, .pieces = pieces});
  }
  cp_->follow();
  MR_RETURN_IF_ERROR(cp_->all_gather("lists", packed_.data(), packed_bytes_, deadline));
  cp_->join(cp_->mark());
  for (const auto& list : lists) {
    std::vector<kernels::CopyPiece> pieces;
    for (size_t i = 0; i < heads.size(); ++i) {
      const auto rank = static_cast<int64_t>(i) % num_ranks,
                 slot = static_cast<int64_t>(i) / num_ranks;
      pieces.push_back({.destination = heads[i] * list.head_bytes,
                        .source = rank * packed_bytes_ + slot * head_bytes + list.packed_offset,
                        .bytes = list.head_bytes});
    }
    device_->copy_pieces({.destination = list.data, .source = packed_.data(), .pieces = pieces});
  }
  return {};
}

}  // namespace millrace::engine
