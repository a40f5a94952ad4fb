// SPDX-License-Identifier: Apache-2.0
#include "model/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::model {

namespace {

double log_sum_exp(std::span<const float> row) {
  const float max = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum);
}

}  // namespace

Result<std::vector<float>> gather_logits(std::span<const float> slices, int64_t num_rows,
                                         const ModelWeights& weights, comm::Communicator& tp,
                                         Deadline deadline) {
  std::vector<int64_t> widths;
  for (int32_t r = 0; r < tp.size(); ++r) {
    MR_ASSIGN_OR_RETURN(const auto shard, shard_shape(weights.config, {r, tp.size()}));
    widths.push_back(shard.vocab_end - shard.vocab_begin);
  }
  std::vector<int64_t> counts;
  for (const int64_t width : widths) counts.push_back(num_rows * width * int64_t{sizeof(float)});
  const int64_t vocab = weights.config.vocab_size;
  std::vector<float> by_rank(static_cast<size_t>(num_rows * vocab));
  MR_RETURN_IF_ERROR(tp.all_gather(std::as_bytes(slices),
                                   std::as_writable_bytes(std::span(by_rank)), counts, deadline));
  if (tp.size() == 1) return by_rank;

  std::vector<float> rows(by_rank.size());
  const float* source = by_rank.data();
  int64_t first = 0;
  for (const int64_t width : widths) {
    for (int64_t row = 0; row < num_rows; ++row, source += width) {
      std::copy_n(source, width, rows.data() + row * vocab + first);
    }
    first += width;
  }
  return rows;
}

Result<void> check_logits(std::span<const float> row, int64_t position) {
  const auto bad = std::ranges::find_if(row, [](float logit) { return !std::isfinite(logit); });
  if (bad == row.end()) return {};
  return error(Errc::kInternal, "the logit of token {} after position {} is not finite: {}",
               bad - row.begin(), position, *bad);
}

std::vector<TokenScore> top_tokens(std::span<const float> row, int32_t count) {
  const double log_sum = log_sum_exp(row);
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = std::min<size_t>(static_cast<size_t>(count), ids.size());
  const auto better = [&](int32_t a, int32_t b) {
    const float x = row[static_cast<size_t>(a)], y = row[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(kept), ids.end(), better);
  std::vector<TokenScore> best;
  for (size_t i = 0; i < kept; ++i) {
    const float logit = row[static_cast<size_t>(ids[i])];
    best.push_back({ids[i], logit, static_cast<float>(logit - log_sum)});
  }
  return best;
}

int32_t best_token(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

double token_logprob(std::span<const float> row, int32_t token_id) {
  return row[static_cast<size_t>(token_id)] - log_sum_exp(row);
}

}  // namespace millrace::model
