// SPDX-License-Identifier: Apache-2.0
#include "kernels/index/closed_form.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/check.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels {

ClosedForm dense_form(int64_t num_tokens) {
  return {.window = num_tokens, .sink = 0};
}

ClosedForm a_shape_form(int64_t sink, int64_t window, int64_t num_tokens) {
  MR_CHECK(sink >= 0 && window >= 1, "a-shape of sink {} and window {}", sink, window);
  return {.window = std::min(window, num_tokens), .sink = std::min(sink, num_tokens)};
}

ClosedForm elastic_form(int64_t alpha, double beta, int64_t num_tokens) {
  const auto grown = static_cast<int64_t>(std::floor(beta * static_cast<double>(num_tokens)));
  return {.window = std::min(std::max(alpha + grown, kPageTokens), num_tokens),
          .sink = std::min(kPageTokens, num_tokens)};
}

int32_t columns_of(const ClosedForm& form, int64_t num_tokens) {
  return form.window == 0 || form.window >= num_tokens ? 0 : static_cast<int32_t>(form.sink);
}

void write_closed_form(const ClosedForm& form, int64_t num_tokens, int32_t head,
                       const IndexView& index) {
  const IndexShape& shape = index.shape;
  const int32_t num_columns = columns_of(form, num_tokens);
  MR_CHECK(shape.max_bands >= 1 && num_columns <= shape.max_columns,
           "1 band and {} columns into {} and {}", num_columns, shape.max_bands, shape.max_columns);
  clear_head(head, index);
  if (form.window == 0) return;
  index.bands[int64_t{head} * shape.max_bands] = {
      .lo = 0, .hi = static_cast<int32_t>(std::min(form.window, num_tokens) - 1)};
  index.num_bands[head] = 1;
  int32_t* columns = index.columns + int64_t{head} * shape.max_columns;
  std::iota(columns, columns + num_columns, 0);
  index.num_columns[head] = num_columns;
}

void write_closed_forms(const ClosedFormParams& params) {
  MR_CHECK(params.forms.size() == params.heads.size(), "{} forms for {} heads", params.forms.size(),
           params.heads.size());
  for (size_t i = 0; i < params.heads.size(); ++i) {
    write_closed_form(params.forms[i], params.num_tokens, params.heads[i], params.index);
  }
}

void clear_head(int32_t head, const IndexView& index) {
  const IndexShape& shape = index.shape;
  MR_CHECK(head >= 0 && head < shape.num_heads, "head {} of {} in the index", head,
           shape.num_heads);
  index.num_bands[head] = 0;
  index.num_columns[head] = 0;
  if (shape.num_tiles == 0) return;
  std::fill_n(index.block_count + head * shape.num_tiles, shape.num_tiles, 0);
  std::fill_n(index.block_begin + head * shape.num_tiles, shape.num_tiles, 0);
}

}  // namespace millrace::kernels
