// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/page_digests.h"

#include "common/check.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {

void page_digests(const PageDigestParams& params, Context& context) {
  MR_CHECK(params.num_tokens >= 0 && params.head_dim > 0, "page_digests of {} tokens of {}",
           params.num_tokens, params.head_dim);
  if (params.num_tokens > 0) launch_page_digests(params, context.stream);
}

}  // namespace millrace::kernels::cuda
