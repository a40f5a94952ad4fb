// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/estimation/row_recall_case.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class RowRecallIn : public GpuCase, public testing::WithParamInterface<DType> {};
MR_INSTANTIATE_NARROW(RowRecallIn);

TEST_P(RowRecallIn, FollowsTheReference) {
  for (const int64_t num_tokens : {1, 64, 130, 1025, 4099}) {
    for (const int32_t head_dim : {num_tokens % 2 == 0 ? 64 : 128, 256}) {
      SCOPED_TRACE(num_tokens);
      EstimationCase c({.num_tokens = num_tokens,
                        .num_query_heads = 6,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .dtype = GetParam()},
                       static_cast<uint64_t>(70 + num_tokens));
      const std::vector<int32_t> heads = {5, 0, 3, 2};
      const auto rows = every_row(num_tokens, num_tokens > 200 ? 37 : 1);
      const auto lse = window_lse(c, 50);
      const auto expected = recall_on_host(c, heads, rows, lse, ref::row_recall);
      const DeviceLayer layer(c);
      const DeviceArray<float> device_lse(lse);
      DeviceArray<float> recall(std::ssize(expected));
      run([&](Context& context) {
        row_recall({.q = layer.rows(),
                    .num_query_heads = 6,
                    .scale = c.scale(),
                    .kv = layer.kv(),
                    .rows = rows,
                    .heads = heads,
                    .lse = device_lse.data(),
                    .num_rows = num_tokens,
                    .recall = recall.data()},
                   context);
      });
      EXPECT_TRUE(recall.guards_intact());
      // As page scores: scores of magnitude below 16 and powers of two, each off by 2^-20 of itself.
      EXPECT_TRUE(test::within(recall.values(), expected, 1.0 / (1 << 17)));
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
