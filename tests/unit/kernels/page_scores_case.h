// What a test of page scores asks for, and the reference's answer.
#pragma once

#include <functional>
#include <vector>

#include "tests/unit/kernels/estimation_case.h"

namespace millrace::kernels {

struct Scores {
  std::vector<float> pages;   // [heads, num_pages]
  std::vector<float> recall;  // [heads]
};

// The dense log-sum-exp of the last rows, [heads.size(), num_rows].
std::vector<float> dense_lse(EstimationCase& c, std::span<const int32_t> heads);

// The tiles that lie within the last rows, and their numbers in the prompt.
std::vector<RowTile> tiles_of_last_rows(EstimationCase& c);
std::vector<int64_t> numbers_of(const std::vector<RowTile>& tiles);

int64_t num_pages_of(const EstimationCase& c);

// `operation` on arrays in host memory.
Scores score_on_host(EstimationCase& c, std::span<const int32_t> heads, const IndexView& index,
                     const std::vector<float>& lse, const std::vector<RowTile>& tiles,
                     const std::function<void(const PageScoresParams&)>& operation);

}  // namespace millrace::kernels
