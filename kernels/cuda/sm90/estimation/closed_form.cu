// SPDX-License-Identifier: Apache-2.0
// Empties the lists of heads and writes those that follow from the length alone.

#include <vector>

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct HeadForm {
  int32_t head = 0;
  int32_t num_columns = 0;
  int32_t band_hi = -1;  // below 0: no band
};

// One thread block per head.
__global__ void closed_form_kernel(const HeadForm* forms, const IndexView index) {
  const HeadForm form = forms[blockIdx.x];
  const IndexShape& shape = index.shape;
  if (threadIdx.x == 0) {
    index.num_bands[form.head] = form.band_hi >= 0 ? 1 : 0;
    index.num_columns[form.head] = form.num_columns;
    if (form.band_hi >= 0) {
      index.bands[int64_t{form.head} * shape.max_bands] = {.lo = 0, .hi = form.band_hi};
    }
  }
  int32_t* columns = index.columns + int64_t{form.head} * shape.max_columns;
  for (int32_t c = threadIdx.x; c < form.num_columns; c += kThreads) columns[c] = c;
  for (int64_t t = threadIdx.x; t < shape.num_tiles; t += kThreads) {
    index.block_count[form.head * shape.num_tiles + t] = 0;
    index.block_begin[form.head * shape.num_tiles + t] = 0;
  }
}

}  // namespace

void build_closed_form(const ClosedFormParams& params, Context& context) {
  MR_CHECK(params.forms.size() == params.heads.size(), "{} forms for {} heads", params.forms.size(),
           params.heads.size());
  const IndexShape& shape = params.index.shape;
  std::vector<HeadForm> heads;
  for (size_t i = 0; i < params.heads.size(); ++i) {
    const ClosedForm& form = params.forms[i];
    const int32_t num_columns = columns_of(form, params.num_tokens);
    MR_CHECK(params.heads[i] >= 0 && params.heads[i] < shape.num_heads, "head {} of {}",
             params.heads[i], shape.num_heads);
    MR_CHECK(shape.max_bands >= 1 && num_columns <= shape.max_columns,
             "1 band and {} columns into {} and {}", num_columns, shape.max_bands,
             shape.max_columns);
    heads.push_back(
        {.head = params.heads[i],
         .num_columns = num_columns,
         .band_hi = static_cast<int32_t>(std::min(form.window, params.num_tokens) - 1)});
  }
  if (heads.empty()) return;
  closed_form_kernel<<<static_cast<unsigned>(heads.size()), kThreads, 0, context.stream>>>(
      context.scratch.upload(std::span(heads)), params.index);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
