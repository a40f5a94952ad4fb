// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/weight_uploader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/checkpoint/mxfp4.h"
#include "tests/support/random_data.h"
#include "tests/unit/model/memory_device.h"

namespace millrace::model {
namespace {

using testing::HasSubstr;

// Several blocks of rows, the last one short.
constexpr int64_t kRows = 1501, kCols = 800;

Tensor tensor_of(const std::vector<float>& values) {
  return {
      .dtype = DType::kFloat32, .shape = {kRows, kCols}, .bytes = std::as_bytes(std::span(values))};
}

// As a device whose memory the host can read, and as a GPU.
constexpr int kDevices[] = {1, 0};

TEST(WeightUploader, ConvertsTheSameBitsOnAnyNumberOfThreads) {
  const auto values = test::random_normals(1, kRows * kCols);
  const int64_t first_col = 37, num_cols = 640;
  const auto slice = TensorSlice::whole(tensor_of(values)).cols(first_col, num_cols);
  for (const int kind : kDevices) {
    for (const int num_threads : {1, 2, 5}) {
      test::MemoryDevice device(kind);
      std::vector<kernels::DeviceBuffer> storage;
      WeightUploader uploader(device, storage, num_threads);
      const auto matrix = uploader.stack(std::array{slice}, DType::kFloat16);
      ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
      int64_t num_wrong = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t col = 0; col < num_cols; ++col) {
          const auto expected = to_float16(values[row * kCols + first_col + col]);
          num_wrong +=
              static_cast<const Float16*>(matrix->data)[row * num_cols + col].bits != expected.bits;
        }
      }
      EXPECT_EQ(num_wrong, 0) << num_threads << " threads";
    }
  }
}

// gpt-oss's experts: gate and up alternate in the columns of a matrix [in, out].
TEST(WeightUploader, TakesEverySecondColumnAsRows) {
  const auto values = test::random_normals(1, kRows * kCols);
  const int64_t first = 3, count = 17;
  const auto slice = TensorSlice::whole(tensor_of(values))
                         .transpose()
                         .every(/*first=*/1, /*step=*/2)
                         .rows(first, count)
                         .cols(5, 100);
  for (const int kind : kDevices) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      test::MemoryDevice device(kind);
      std::vector<kernels::DeviceBuffer> storage;
      WeightUploader uploader(device, storage, /*num_threads=*/2);
      const auto matrix = uploader.stack(std::array{slice}, dtype);
      ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
      int64_t num_wrong = 0;
      for (int64_t row = 0; row < count; ++row) {
        for (int64_t col = 0; col < 100; ++col) {
          const float expected = values[(5 + col) * kCols + 1 + 2 * (first + row)];
          const auto at = static_cast<size_t>(row * 100 + col);
          num_wrong += dtype == DType::kFloat32
                           ? static_cast<const float*>(matrix->data)[at] != expected
                           : static_cast<const BFloat16*>(matrix->data)[at].bits !=
                                 to_bfloat16(expected).bits;
        }
      }
      EXPECT_EQ(num_wrong, 0);
    }
  }
}

TEST(WeightUploader, TakesEverySecondRow) {
  const auto values = test::random_normals(1, kRows * kCols);
  const auto slice = TensorSlice::whole(tensor_of(values)).every(1, 2).rows(2, 9);
  test::MemoryDevice device(1);
  std::vector<kernels::DeviceBuffer> storage;
  WeightUploader uploader(device, storage, /*num_threads=*/1);
  const auto matrix = uploader.stack(std::array{slice}, DType::kFloat32);
  ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
  for (int64_t row = 0; row < 9; ++row) {
    const auto* actual = static_cast<const float*>(matrix->data) + row * kCols;
    const auto* expected = values.data() + (1 + 2 * (2 + row)) * kCols;
    EXPECT_TRUE(std::equal(actual, actual + kCols, expected)) << row;
  }
}

// gpt-oss's experts in 4 bits: a rank's columns of every second row, in 16 bits wherever the memory
// is.
TEST(WeightUploader, MultipliesMxfp4Out) {
  constexpr int64_t kBlocks = kCols / kMxfp4Block;
  std::vector<std::byte> elements(kRows * kBlocks * kMxfp4BlockBytes), scales(kRows * kBlocks);
  for (size_t i = 0; i < elements.size(); ++i) {
    elements[i] = static_cast<std::byte>(test::random_bits(1, i));
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<std::byte>(120 + test::random_bits(2, i) % 8);
  }
  const int64_t first_col = 400, num_cols = 400;
  const auto slice = TensorSlice::whole({.dtype = DType::kBFloat16,
                                         .mxfp4 = true,
                                         .block_scales = scales,
                                         .shape = {kRows, kCols},
                                         .bytes = elements})
                         .every(1, 2)
                         .cols(first_col, num_cols);
  for (const int kind : kDevices) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      test::MemoryDevice device(kind);
      std::vector<kernels::DeviceBuffer> storage;
      WeightUploader uploader(device, storage, /*num_threads=*/2);
      const auto matrix = uploader.stack(std::array{slice}, dtype);
      ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
      ASSERT_EQ(matrix->rows, kRows / 2);
      std::vector<uint16_t> expected(static_cast<size_t>(num_cols));
      for (int64_t row = 0; row < matrix->rows; ++row) {
        const int64_t block = (1 + 2 * row) * kBlocks;
        convert_mxfp4(elements.data() + block * kMxfp4BlockBytes, scales.data() + block, first_col,
                      num_cols, expected.data(), dtype);
        const auto* actual = static_cast<const uint16_t*>(matrix->data) + row * num_cols;
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), actual)) << row;
      }
    }
  }
}

TEST(WeightUploader, NamesTheFirstWeightBeyondFloat16OnAnyNumberOfThreads) {
  auto values = test::random_normals(1, kRows * kCols);
  for (const int64_t row : {700, 701, 1100, 1500}) values[row * kCols + 5] = 1e6F;
  const auto slice = TensorSlice::whole(tensor_of(values));
  for (const int kind : kDevices) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      test::MemoryDevice device(kind);
      std::vector<kernels::DeviceBuffer> storage;
      WeightUploader uploader(device, storage, /*num_threads=*/4);
      const auto matrix = uploader.stack(std::array{slice}, DType::kFloat16);
      ASSERT_FALSE(matrix.ok());
      EXPECT_EQ(matrix.error().code, Errc::kUnsupported);
      EXPECT_THAT(matrix.error().message, HasSubstr("row 700 column 5"));
    }
  }
}

}  // namespace
}  // namespace millrace::model
