// SPDX-License-Identifier: Apache-2.0
// The parameters of a device operation that is called now and done later. Holds a copy of the host
// memory they refer to, which the caller may reuse when the call returns.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/api/device.h"

namespace millrace::test {

// Calls keep(span) for each span in the parameters; those of most operations have none.
template <typename Keep>
void keep_spans(kernels::CopyPiecesParams& params, Keep keep) {
  keep(params.pieces);
}
template <typename Keep>
void keep_spans(kernels::AttentionParams& params, Keep keep) {
  keep(params.tiles);
}
template <typename Keep>
void keep_spans(kernels::ClosedFormParams& params, Keep keep) {
  keep(params.heads);
  keep(params.forms);
}
template <typename Keep>
void keep_spans(kernels::LastRowSumsParams& params, Keep keep) {
  keep(params.heads);
}
template <typename Keep>
void keep_spans(kernels::VerticalSlashParams& params, Keep keep) {
  keep(params.heads);
  keep(params.budgets);
}
template <typename Keep>
void keep_spans(kernels::BlockSparseParams& params, Keep keep) {
  keep(params.tiles);
  keep(params.heads);
  keep(params.top_k);
}
template <typename Keep>
void keep_spans(kernels::AdaptiveParams& params, Keep keep) {
  keep(params.tiles);
  keep(params.heads);
  keep(params.rules);
}
template <typename Keep>
void keep_spans(kernels::PageScoresParams& params, Keep keep) {
  keep(params.heads);
}
template <typename Keep>
void keep_spans(kernels::RowRecallParams& params, Keep keep) {
  keep(params.rows);
  keep(params.heads);
}
template <typename Params, typename Keep>
void keep_spans(Params&, Keep) {}

template <typename Params>
class KeptParams {
 public:
  explicit KeptParams(const Params& params) : params_(params) {
    keep_spans(params_, [this](auto& span) {
      using Element =
          std::remove_cv_t<typename std::remove_reference_t<decltype(span)>::element_type>;
      auto copy = std::make_shared<const std::vector<Element>>(span.begin(), span.end());
      span = *copy;
      memory_.push_back(std::move(copy));
    });
  }

  const Params& operator*() const { return params_; }

 private:
  Params params_;
  std::vector<std::shared_ptr<const void>> memory_;
};

}  // namespace millrace::test
