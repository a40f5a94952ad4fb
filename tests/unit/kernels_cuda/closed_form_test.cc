// SPDX-License-Identifier: Apache-2.0
#include "kernels/index/closed_form.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/sm90/operations.h"
#include "tests/unit/kernels_cuda/device_index.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class ClosedFormTest : public GpuCase {};

TEST_F(ClosedFormTest, WritesWhatTheHostWritesAndNothingElse) {
  const IndexShape shape{
      .num_heads = 5, .max_bands = 3, .max_columns = 400, .num_tiles = 313, .max_blocks = 10};
  const int64_t num_tokens = 20000;
  const std::vector<int32_t> heads = {4, 0, 1, 3};  // 2 keeps what it has
  const std::vector<ClosedForm> forms = {dense_form(num_tokens),
                                         a_shape_form(300, 1024, num_tokens),
                                         {},
                                         elastic_form(100, 0.1, num_tokens)};
  IndexStorage expected(shape);
  // What another layer may have left there.
  for (int32_t head = 0; head < shape.num_heads; ++head) {
    write_closed_form(a_shape_form(7, 64, num_tokens), num_tokens, head, expected.view());
  }
  std::fill_n(expected.block_count.data(), shape.num_heads * shape.num_tiles, 7);
  DeviceIndex index(expected.view());
  write_closed_forms(
      {.num_tokens = num_tokens, .heads = heads, .forms = forms, .index = expected.view()});
  run([&](Context& context) {
    build_closed_form(
        {.num_tokens = num_tokens, .heads = heads, .forms = forms, .index = index.view()}, context);
  });
  EXPECT_EQ(index.bands.values(), expected.bands.values());
  EXPECT_EQ(index.num_bands.values(), expected.num_bands.values());
  EXPECT_EQ(index.columns.values(), expected.columns.values());
  EXPECT_EQ(index.num_columns.values(), expected.num_columns.values());
  EXPECT_EQ(index.block_count.values(), expected.block_count.values());
  EXPECT_EQ(index.block_begin.values(), expected.block_begin.values());
  EXPECT_EQ(index.blocks.values(), expected.blocks.values());
  EXPECT_TRUE(index.guards_intact());
}

}  // namespace
}  // namespace millrace::kernels::cuda
