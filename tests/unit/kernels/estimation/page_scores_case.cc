#include "tests/unit/kernels/estimation/page_scores_case.h"

#include "common/units.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels {

std::vector<float> dense_lse(EstimationCase& c, std::span<const int32_t> heads) {
  std::vector<float> columns(heads.size() * static_cast<size_t>(c.shape().num_tokens));
  std::vector<float> diagonals(columns.size());
  std::vector<float> lse(heads.size() * static_cast<size_t>(c.last().num_rows));
  ref::probe({.last = c.last(),
              .kv = c.kv(),
              .heads = heads,
              .column_sums = columns.data(),
              .diagonal_sums = diagonals.data(),
              .lse = lse.data()});
  return lse;
}

int64_t num_pages_of(const EstimationCase& c) {
  return ceil_div(c.shape().num_tokens, kPageTokens);
}

std::vector<float> scores_on_host(EstimationCase& c, std::span<const int32_t> heads,
                                  const std::vector<float>& lse,
                                  const std::function<void(const PageScoresParams&)>& operation,
                                  int64_t window) {
  std::vector<float> pages(heads.size() * static_cast<size_t>(num_pages_of(c)));
  operation({.last = c.last(),
             .kv = c.kv(),
             .lse = lse.data(),
             .window = window,
             .heads = heads,
             .page_scores = pages.data()});
  return pages;
}

}  // namespace millrace::kernels
