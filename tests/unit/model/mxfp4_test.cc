// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/mxfp4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/raw_tensors.h"

namespace millrace::model {
namespace {

using test::RawTensor;
using test::RawTensors;
using test::TempDirectory;
using testing::HasSubstr;

// By the format's definition: sign, 2 bits of exponent with bias 1, 1 of mantissa.
double e2m1(unsigned code) {
  const int exponent = static_cast<int>(code >> 1 & 3), mantissa = static_cast<int>(code & 1);
  const double magnitude =
      exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + 0.5 * mantissa, exponent - 1);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

double element(const std::vector<std::byte>& blocks, const std::vector<std::byte>& scales,
               int64_t i) {
  const auto byte = std::to_integer<unsigned>(blocks[static_cast<size_t>(i / 2)]);
  const int scale = std::to_integer<int>(scales[static_cast<size_t>(i / 32)]);
  return std::ldexp(e2m1(i % 2 == 0 ? byte & 15 : byte >> 4), scale - 127);
}

// All bytes under scales from the smallest to the largest that is accepted. Some of the numbers are
// subnormal in bfloat16 and float32.
TEST(Mxfp4, IsExactInBfloat16AndFloat32) {
  std::vector<std::byte> blocks, scales;
  for (int scale = 0; scale <= kMaxMxfp4Scale; ++scale) {
    for (int byte = 0; byte < 256; ++byte) blocks.push_back(static_cast<std::byte>(byte));
    for (int block = 0; block < 16; ++block) scales.push_back(static_cast<std::byte>(scale));
  }
  const auto count = static_cast<int64_t>(2 * blocks.size());
  std::vector<BFloat16> narrow(static_cast<size_t>(count));
  std::vector<float> wide(static_cast<size_t>(count));
  convert_mxfp4(blocks.data(), scales.data(), 0, count, narrow.data(), DType::kBFloat16);
  convert_mxfp4(blocks.data(), scales.data(), 0, count, wide.data(), DType::kFloat32);
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double expected = element(blocks, scales, i);
    num_wrong += double{to_float(narrow[static_cast<size_t>(i)])} != expected;
    num_wrong += double{wide[static_cast<size_t>(i)]} != expected;
  }
  EXPECT_EQ(num_wrong, 0);
}

TEST(Mxfp4, APartOfARowMayBeginAndEndWithinBlocks) {
  std::vector<std::byte> blocks(64), scales(4);
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i] = static_cast<std::byte>(test::random_bits(1, i));
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(120 + i);
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{0, 128}, {16, 16}, {17, 1}, {31, 66}, {64, 64}, {48, 80}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      std::vector<float> out(static_cast<size_t>(count) + 1, -77);
      if (dtype == DType::kFloat32) {
        convert_mxfp4(blocks.data(), scales.data(), first, count, out.data(), dtype);
      } else {
        std::vector<Float16> narrow(static_cast<size_t>(count));
        convert_mxfp4(blocks.data(), scales.data(), first, count, narrow.data(), dtype);
        for (size_t i = 0; i < narrow.size(); ++i) out[i] = to_float(narrow[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(i)], element(blocks, scales, first + i));
      }
      EXPECT_EQ(out.back(), -77);
    }
  }
}

RawTensor bytes_tensor(std::vector<int64_t> shape, char value) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  return {"U8", std::move(shape), std::string(count, value)};
}

Result<Checkpoint> checkpoint_of(const TempDirectory& directory, const RawTensors& tensors) {
  directory.write("model.safetensors", test::raw_safetensors(tensors));
  return Checkpoint::open(directory.path());
}

TEST(Mxfp4, ACheckpointHasItAsBlocksAndScales) {
  TempDirectory directory;
  const auto checkpoint = checkpoint_of(directory, {{"w_blocks", bytes_tensor({2, 3, 2, 16}, 0x21)},
                                                    {"w_scales", bytes_tensor({2, 3, 2}, 127)}});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  const auto tensor = checkpoint->find_mxfp4("w", std::vector<int64_t>{2, 3, 64});
  ASSERT_TRUE(tensor.ok()) << tensor.error().to_string();
  EXPECT_TRUE(tensor->mxfp4);
  EXPECT_EQ(tensor->bytes.size(), 2u * 3 * 64 / 2);
  EXPECT_EQ(tensor->block_scales.size(), 2u * 3 * 2);
}

TEST(Mxfp4, ItsScalesMayHaveATypeOfTheirOwn) {
  TempDirectory directory;
  auto scales = bytes_tensor({3, 2}, 127);
  scales.dtype = "F8_E8M0";
  const auto checkpoint = checkpoint_of(
      directory, {{"w_blocks", bytes_tensor({3, 2, 16}, 0x21)}, {"w_scales", scales}});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  const auto tensor = checkpoint->find_mxfp4("w", std::vector<int64_t>{3, 64});
  ASSERT_TRUE(tensor.ok()) << tensor.error().to_string();
  EXPECT_EQ(tensor->block_scales.size(), 6u);
}

TEST(Mxfp4, WhatIsNotItIsRefusedByTensor) {
  struct Case {
    RawTensors tensors;
    std::vector<int64_t> shape;
    Errc code;
    const char* says;
  };
  const std::vector<float> floats(6, 1.0F);
  const auto blocks = bytes_tensor({3, 2, 16}, 0x21), scales = bytes_tensor({3, 2}, 127);
  const std::vector<int64_t> shape = {3, 64};
  const Case cases[] = {
      {{{"w_blocks", blocks}}, shape, Errc::kNotFound, "w_scales"},
      {{{"w_scales", scales}}, shape, Errc::kNotFound, "w_blocks"},
      {{{"w_blocks", blocks}, {"w_scales", scales}}, {4, 64}, Errc::kInvalidArgument, "w_blocks"},
      {{{"w_blocks", blocks}, {"w_scales", scales}}, {3, 48}, Errc::kUnsupported, "rows of 48"},
      {{{"w_blocks", blocks}, {"w_scales", bytes_tensor({3, 1}, 127)}},
       shape,
       Errc::kInvalidArgument,
       "w_scales"},
      {{{"w_blocks", blocks}, {"w_scales", bytes_tensor({3, 2}, '\xfd')}},
       shape,
       Errc::kCorrupt,
       "a scale of 253"},
      {{{"w_blocks", blocks}, {"w_scales", test::float32_tensor({3, 2}, floats)}},
       shape,
       Errc::kUnsupported,
       "U8"},
  };
  for (const auto& [tensors, asked, code, says] : cases) {
    TempDirectory directory;
    const auto checkpoint = checkpoint_of(directory, tensors);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    const auto tensor = checkpoint->find_mxfp4("w", asked);
    ASSERT_FALSE(tensor.ok()) << says;
    EXPECT_EQ(tensor.error().code, code) << tensor.error().to_string();
    EXPECT_THAT(tensor.error().message, HasSubstr(says));
  }
}

TEST(Mxfp4, ItsPartsAreNoWeights) {
  TempDirectory directory;
  const auto checkpoint = checkpoint_of(directory, {{"w", bytes_tensor({3, 2}, 1)}});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  const auto tensor = checkpoint->find("w", std::vector<int64_t>{3, 2});
  ASSERT_FALSE(tensor.ok());
  EXPECT_EQ(tensor.error().code, Errc::kNotFound);
  EXPECT_THAT(tensor.error().message, HasSubstr("F8_E4M3"));
}

TEST(Mxfp4, OtherPartsAreAnotherFingerprint) {
  TempDirectory directory;
  const auto fingerprint = [&](char block, char scale) {
    return checkpoint_of(directory, {{"w_blocks", bytes_tensor({3, 2, 16}, block)},
                                     {"w_scales", bytes_tensor({3, 2}, scale)}})
        ->fingerprint(/*num_threads=*/1);
  };
  const auto first = fingerprint(0x21, 127);
  EXPECT_EQ(fingerprint(0x21, 127), first);
  EXPECT_NE(fingerprint(0x22, 127), first);
  EXPECT_NE(fingerprint(0x21, 126), first);
}

}  // namespace
}  // namespace millrace::model
