// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/float8_scales.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "common/units.h"
#include "model/checkpoint/element_conversion.h"

namespace millrace::model {

namespace {

using Shape = std::vector<int64_t>;

// The shapes that a weight's scales may have, for the error message about a wrong one.
std::string allowed_shapes(const Float8Format& format, int64_t rows, const Shape& blocks) {
  std::vector<std::string> forms;
  if (format.per_tensor) forms.emplace_back("[1]");
  if (format.per_row) forms.push_back(fmt::format("[{}, 1]", rows));
  if (format.block_rows != 0) forms.push_back(fmt::format("[{}]", fmt::join(blocks, ", ")));
  if (forms.empty()) return "none: config.json has no quantisation of weights";
  return fmt::format("{}", fmt::join(forms, " or "));
}

}  // namespace

Result<Float8Scales> Float8Scales::create(const Float8Format& format,
                                          std::span<const int64_t> shape,
                                          std::span<const int64_t> scale_shape, DType scale_dtype,
                                          std::span<const std::byte> scale_bytes) {
  const int64_t rows = shape[0], cols = shape[1];
  const Shape found(scale_shape.begin(), scale_shape.end());
  const bool blocks = format.block_rows != 0;
  const Shape grid = blocks ? Shape{ceil_div(rows, int64_t{format.block_rows}),
                                    ceil_div(cols, int64_t{format.block_cols})}
                            : Shape{};
  Float8Scales scales;
  if (format.per_tensor && (found.empty() || found == Shape{1} || found == Shape{1, 1})) {
    scales.block_rows_ = std::max<int64_t>(rows, 1);
    scales.block_cols_ = std::max<int64_t>(cols, 1);
  } else if (format.per_row && (found == Shape{rows} || found == Shape{rows, 1})) {
    scales.block_cols_ = std::max<int64_t>(cols, 1);
  } else if (blocks && found == grid) {
    scales.block_rows_ = format.block_rows;
    scales.block_cols_ = format.block_cols;
    scales.blocks_per_row_ = grid[1];
  } else {
    return error(Errc::kInvalidArgument, "shape [{}]; a weight of [{}] has {}",
                 fmt::join(found, ", "), fmt::join(shape, ", "),
                 allowed_shapes(format, rows, grid));
  }
  const auto count = static_cast<int64_t>(scale_bytes.size()) / dtype_bytes(scale_dtype);
  scales.values_.resize(static_cast<size_t>(count));
  convert_elements(scale_bytes.data(), scale_dtype, count, scales.values_.data(), DType::kFloat32);
  const auto wrong = std::ranges::find_if(
      scales.values_, [](float scale) { return !std::isfinite(scale) || scale <= 0; });
  if (wrong != scales.values_.end()) {
    return error(Errc::kCorrupt, "element {} is {}; scales are positive numbers",
                 wrong - scales.values_.begin(), *wrong);
  }
  return scales;
}

}  // namespace millrace::model
