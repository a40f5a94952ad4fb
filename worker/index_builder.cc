#include "worker/index_builder.h"

#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "kernels/api/closed_form.h"

namespace millrace::worker {

using model::Pattern;

namespace {

// The patterns whose lists follow from the length alone.
std::optional<kernels::ClosedForm> closed_form(const model::HeadPattern& head, int64_t num_tokens) {
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

}  // namespace

std::vector<int32_t> IndexBuilder::heads_of(int32_t layer, Pattern wanted,
                                            int32_t num_heads) const {
  std::vector<int32_t> heads;
  for (int32_t h = 0; h < num_heads; ++h) {
    if (pattern(layer, h).pattern == wanted) heads.push_back(h);
  }
  return heads;
}

Result<void> IndexBuilder::build(int32_t layer, const LocalQueries& queries,
                                 const kernels::LastRows& last, const kernels::KvSlab& kv,
                                 const kernels::IndexView& index, Deadline deadline) {
  const int32_t num_heads = queries.num_query_heads;
  for (int32_t h = 0; h < num_heads; ++h) {
    kernels::clear_head(h, index);
    if (const auto form = closed_form(pattern(layer, h), kv.num_tokens)) {
      kernels::write_closed_form(*form, kv.num_tokens, h, index);
    }
  }

  const auto slash_heads = heads_of(layer, Pattern::kVerticalSlash, num_heads);
  if (!slash_heads.empty()) {
    MR_RETURN_IF_ERROR(vertical_slash(layer, slash_heads, last, kv, index, deadline));
  }
  if (const auto heads = heads_of(layer, Pattern::kBlockSparse, num_heads); !heads.empty()) {
    std::vector<int32_t> top_k;
    for (const int32_t h : heads) top_k.push_back(pattern(layer, h).top_k);
    device_->build_block_sparse({.q = queries.q,
                                 .num_query_heads = num_heads,
                                 .kv = kv,
                                 .tiles = *tiles_,
                                 .heads = heads,
                                 .top_k = top_k,
                                 .index = index});
  }
  if (const auto heads = heads_of(layer, Pattern::kAdaptive, num_heads); !heads.empty()) {
    adaptive(layer, heads, queries, kv, index);
  }
  return device_->synchronize(deadline);
}

void IndexBuilder::adaptive(int32_t layer, const std::vector<int32_t>& heads,
                            const LocalQueries& queries, const kernels::KvSlab& kv,
                            const kernels::IndexView& index) {
  // One launch per pair of representative counts; a plan has one in practice.
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> by_counts;
  for (const int32_t h : heads) {
    const auto& head = pattern(layer, h);
    by_counts[{head.row_outliers, head.page_outliers}].push_back(h);
  }
  for (const auto& [counts, members] : by_counts) {
    std::vector<float> gamma;
    for (const int32_t h : members) gamma.push_back(pattern(layer, h).gamma);
    device_->build_adaptive({.q = queries.q,
                             .num_query_heads = queries.num_query_heads,
                             .scale = queries.scale,
                             .kv = kv,
                             .tiles = *tiles_,
                             .heads = members,
                             .gamma = gamma,
                             .row_outliers = counts.first,
                             .page_outliers = counts.second,
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
    const auto num_own = static_cast<int64_t>(own.size());
    MR_ASSIGN_OR_RETURN(const auto columns, device_->allocate(num_own * kv.num_tokens * 4));
    MR_ASSIGN_OR_RETURN(const auto diagonals, device_->allocate(num_own * kv.num_tokens * 4));
    MR_ASSIGN_OR_RETURN(const auto lse, device_->allocate(num_own * last.num_rows * 4));
    device_->probe({.last = last,
                    .kv = kv,
                    .heads = own,
                    .column_sums = columns.as<float>(),
                    .diagonal_sums = diagonals.as<float>(),
                    .lse = lse.as<float>()});
    device_->build_vertical_slash({.column_sums = columns.as<float>(),
                                   .diagonal_sums = diagonals.as<float>(),
                                   .num_tokens = kv.num_tokens,
                                   .heads = own,
                                   .budgets = budgets,
                                   .index = index});
    MR_RETURN_IF_ERROR(device_->synchronize(deadline));
  }
  if (cp_->size() == 1) return {};
  return exchange_lists(heads, index, deadline);
}

Result<void> IndexBuilder::exchange_lists(const std::vector<int32_t>& heads,
                                          const kernels::IndexView& index, Deadline deadline) {
  // A head travels as its two counts and its two lists at full capacity: kilobytes, and equal on
  // all ranks.
  const auto& shape = index.shape;
  const int64_t head_bytes = 2 * int64_t{sizeof(int32_t)} +
                             shape.max_bands * int64_t{sizeof(kernels::Band)} +
                             shape.max_columns * int64_t{sizeof(int32_t)};
  const auto num_ranks = static_cast<size_t>(cp_->size());
  std::vector<int64_t> counts(num_ranks, 0);
  for (size_t i = 0; i < heads.size(); ++i) counts[i % num_ranks] += head_bytes;

  // Calls visit(pointer, bytes) for each of the four pieces of a head, in the order they travel.
  const auto visit_head = [&](int32_t h, auto&& visit) {
    visit(index.num_bands + h, sizeof(int32_t));
    visit(index.num_columns + h, sizeof(int32_t));
    visit(index.bands + int64_t{h} * shape.max_bands,
          static_cast<size_t>(shape.max_bands) * sizeof(kernels::Band));
    visit(index.columns + int64_t{h} * shape.max_columns,
          static_cast<size_t>(shape.max_columns) * sizeof(int32_t));
  };
  const auto own_rank = static_cast<size_t>(cp_->rank());
  std::vector<std::byte> send(static_cast<size_t>(counts[own_rank]));
  std::byte* to = send.data();
  for (size_t i = own_rank; i < heads.size(); i += num_ranks) {
    visit_head(heads[i], [&](const void* piece, size_t bytes) {
      std::memcpy(to, piece, bytes);
      to += bytes;
    });
  }
  std::vector<std::byte> all(heads.size() * static_cast<size_t>(head_bytes));
  MR_RETURN_IF_ERROR(cp_->all_gather(send, all, counts, deadline));
  const std::byte* from = all.data();
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    for (size_t i = rank; i < heads.size(); i += num_ranks) {
      visit_head(heads[i], [&](void* piece, size_t bytes) {
        std::memcpy(piece, from, bytes);
        from += bytes;
      });
    }
  }
  return {};
}

}  // namespace millrace::worker
