// SPDX-License-Identifier: Apache-2.0
// The exact share of a row's attention that each page has, which the adaptive pattern estimates.
//
// Every key that a row may see is multiplied with it in float32 and counted; the sum of a page is
// in double. Inputs of every compute dtype of the CPU are accepted, and widened.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/cpu/estimation/estimation_kernels.h"
#include "kernels/cpu/estimation/row_scores.h"
#include "kernels/cpu/rows/float_rows.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::bench {

// Q and K of one query head, in host memory.
struct HeadInputs {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim], kv.dtype
  int32_t num_query_heads = 0;
  int32_t head = 0;
  float scale = 0;
  kernels::KvSlab kv;
};

// Working memory of one thread. The data that `inputs` points to must outlive it.
class ExactMasses {
 public:
  ExactMasses(const HeadInputs& inputs, const kernels::cpu::Context& context);

  // Computes the masses of `num_rows` rows at even steps of a whole tile, a power of two up to
  // kTileRows; in a shorter tile, of those that exist.
  void compute(const kernels::RowTile& tile, int64_t num_rows);

  // Results of the last compute(): a row's masses, [causal pages of the tile], as the natural log
  // of the sum of exp(scale q k) over the page's keys up to the row.
  int64_t num_rows() const { return std::ssize(rows_); }
  std::span<const double> log_masses(int64_t row) const {
    return std::span(log_masses_)
        .subspan(static_cast<size_t>(row * num_pages_), static_cast<size_t>(num_pages_));
  }

 private:
  kernels::cpu::RowScores scores_of(const kernels::RowTile& tile);
  void add_page(const kernels::cpu::RowScores& scores, int64_t page, int64_t num_keys);

  HeadInputs inputs_;
  kernels::cpu::Context context_;
  int32_t kv_head_;
  kernels::cpu::QueryRows queries_;
  const kernels::cpu::EstimationKernels& kernels_;

  kernels::cpu::ScoreTile score_tile_;
  std::vector<float> query_;
  std::vector<int64_t> rows_;  // of the tile, ascending
  int64_t num_pages_ = 0;
  std::vector<double> log_masses_;  // [rows, pages]
};

}  // namespace millrace::bench
