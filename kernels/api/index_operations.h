// SPDX-License-Identifier: Apache-2.0
// What finds the sparse index of a prompt, and what judges pages by its attention.
#pragma once

#include "kernels/api/digest.h"
#include "kernels/api/estimation.h"
#include "kernels/index/closed_form.h"

namespace millrace::kernels {

class IndexOperations {
 public:
  virtual ~IndexOperations() = default;

  virtual void build_closed_form(const ClosedFormParams& params) = 0;
  virtual void last_row_sums(const LastRowSumsParams& params) = 0;
  virtual void build_vertical_slash(const VerticalSlashParams& params) = 0;
  virtual void build_block_sparse(const BlockSparseParams& params) = 0;
  virtual void build_adaptive(const AdaptiveParams& params) = 0;
  virtual void page_scores(const PageScoresParams& params) = 0;
  virtual void row_recall(const RowRecallParams& params) = 0;
  virtual void page_digests(const PageDigestParams& params) = 0;
};

}  // namespace millrace::kernels
