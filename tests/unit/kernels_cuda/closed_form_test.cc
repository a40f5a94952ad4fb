#include "kernels/api/closed_form.h"

#include <gtest/gtest.h>

#include "kernels/cuda/operations.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class ClosedFormTest : public GpuCase {};

// The arrays behind an index, in host memory (Array = std::vector) or on the device.
template <template <typename> typename Array>
struct IndexArrays {
  explicit IndexArrays(const IndexShape& shape_in)
      : shape(shape_in),
        bands(std::vector<Band>(shape.num_heads * shape.max_bands, Band{7, 7})),
        num_bands(std::vector<int32_t>(shape.num_heads, 7)),
        columns(std::vector<int32_t>(shape.num_heads * shape.max_columns, 7)),
        num_columns(std::vector<int32_t>(shape.num_heads, 7)),
        block_count(std::vector<int32_t>(shape.num_heads * shape.num_tiles, 7)),
        block_begin(std::vector<int64_t>(shape.num_heads * shape.num_tiles, 7)),
        blocks(std::vector<int32_t>(shape.num_heads * shape.max_blocks, 7)) {}

  IndexView view() {
    return {.shape = shape,
            .bands = bands.data(),
            .num_bands = num_bands.data(),
            .columns = columns.data(),
            .num_columns = num_columns.data(),
            .block_count = block_count.data(),
            .block_begin = block_begin.data(),
            .blocks = blocks.data()};
  }

  IndexShape shape;
  Array<Band> bands;
  Array<int32_t> num_bands;
  Array<int32_t> columns;
  Array<int32_t> num_columns;
  Array<int32_t> block_count;
  Array<int64_t> block_begin;
  Array<int32_t> blocks;
};

template <typename T>
using HostArray = std::vector<T>;

TEST_F(ClosedFormTest, WritesWhatTheHostWritesAndNothingElse) {
  const IndexShape shape{
      .num_heads = 5, .max_bands = 3, .max_columns = 400, .num_tiles = 313, .max_blocks = 10};
  const int64_t num_tokens = 20000;
  const std::vector<int32_t> heads = {4, 0, 1, 3};  // 2 keeps what it has
  const std::vector<ClosedForm> forms = {dense_form(num_tokens),
                                         a_shape_form(300, 1024, num_tokens),
                                         {},
                                         elastic_form(100, 0.1, num_tokens)};
  IndexArrays<HostArray> expected(shape);
  write_closed_forms(
      {.num_tokens = num_tokens, .heads = heads, .forms = forms, .index = expected.view()});
  IndexArrays<DeviceArray> index(shape);
  run([&](Context& context) {
    build_closed_form(
        {.num_tokens = num_tokens, .heads = heads, .forms = forms, .index = index.view()}, context);
  });
  EXPECT_EQ(index.bands.values(), expected.bands);
  EXPECT_EQ(index.num_bands.values(), expected.num_bands);
  EXPECT_EQ(index.columns.values(), expected.columns);
  EXPECT_EQ(index.num_columns.values(), expected.num_columns);
  EXPECT_EQ(index.block_count.values(), expected.block_count);
  EXPECT_EQ(index.block_begin.values(), expected.block_begin);
  EXPECT_EQ(index.blocks.values(), expected.blocks);
  EXPECT_TRUE(index.bands.guards_intact() && index.columns.guards_intact() &&
              index.block_count.guards_intact());
}

}  // namespace
}  // namespace millrace::kernels::cuda
