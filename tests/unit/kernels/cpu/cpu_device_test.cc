// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/runtime/simd_level.h"
#include "kernels/ref/ref_device.h"
#include "tests/unit/kernels/api/copy_pieces_case.h"
#include "tests/unit/kernels/kv_float8_case.h"

namespace millrace::kernels {
namespace {

TEST(CpuDevice, NamesItsThreadsAndInstructionSet) {
  const auto device = make_cpu_device({.num_threads = 2});
  const DeviceInfo info = device->info();
  EXPECT_EQ(info.name,
            fmt::format("cpu (2 threads, {})", cpu::simd_level_name(cpu::fastest_simd())));
  EXPECT_EQ(info.num_threads, 2);
  EXPECT_EQ(make_cpu_device({.num_threads = 1})->info().name.find("cpu (1 thread, "), 0);
}

TEST(CpuDevice, ComputesInFloat32AndBFloat16) {
  const DeviceInfo info = make_cpu_device({})->info();
  EXPECT_TRUE(info.computes_in(DType::kFloat32));
  EXPECT_TRUE(info.computes_in(DType::kBFloat16));
  EXPECT_FALSE(info.computes_in(DType::kFloat16));
  EXPECT_EQ(info.projection_dtype(DType::kBFloat16), DType::kFloat32);
}

// A product may exceed float16's range.
TEST(DeviceInfo, NarrowProductsAreBFloat16AndNeverFloat16) {
  const DeviceInfo info = {.narrow_projections = true};
  EXPECT_EQ(info.projection_dtype(DType::kBFloat16), DType::kBFloat16);
  EXPECT_EQ(info.projection_dtype(DType::kFloat16), DType::kFloat32);
  EXPECT_EQ(info.projection_dtype(DType::kFloat32), DType::kFloat32);
}

TEST(CpuDevice, PiecesOf8BitFloatsBecomeTheNumbersTheyStandFor) {
  const auto device = make_cpu_device({});
  const auto codes = test::all_codes(test::kFloat8Planes * test::kPieceCodes);
  constexpr float kScale = 0.0213F;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto expected = test::reference_pieces(codes, dtype, kScale);
    std::vector<std::byte> x(expected.size());
    device->float8_decode_pieces(test::decode_pieces_params(codes.data(), x.data(), dtype, kScale));
    EXPECT_TRUE(x == expected) << dtype_name(dtype);
  }
}

TEST(CpuDevice, GivesAlignedMemoryOfAnySize) {
  const auto device = make_cpu_device({});
  for (int64_t bytes : {1, 63, 64, 65, 1'000'003}) {
    auto buffer = device->allocate(bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0);
  }
  EXPECT_TRUE(device->allocate(0).ok());
}

TEST(CpuDevice, RefusesMoreMemoryThanTheMachineHasAndSaysTheNumbers) {
  const auto device = make_cpu_device({});
  const auto buffer = device->allocate(std::numeric_limits<int64_t>::max());
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().code, Errc::kExhausted);
  EXPECT_THAT(buffer.error().message, testing::HasSubstr("requested"));
}

TEST(CpuDevice, BufferOutlivesItsMove) {
  const auto device = make_cpu_device({});
  auto first = std::move(device->allocate(256)).value();
  const void* data = first.data();
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what a move leaves
}

TEST(CpuDevice, CopiesPiecesOfPlanes) {
  test::expect_pieces_are_copied(*make_cpu_device({}));
}

TEST(CpuDevice, MultipliesAndCopiesLikeTheReference) {
  for (const auto& device : {make_cpu_device({.num_threads = 2}), make_ref_device()}) {
    const float a[] = {1, 2, 3, 4};
    auto on_device = std::move(device->allocate(sizeof a)).value();
    auto product = std::move(device->allocate(sizeof a)).value();
    device->copy(on_device.data(), a, sizeof a);
    const ConstMatrix matrix =
        dense_matrix(static_cast<const void*>(on_device.data()), DType::kFloat32, 2, 2);
    device->gemm(
        {.a = matrix, .b = matrix, .c = dense_matrix(product.data(), DType::kFloat32, 2, 2)});
    float result[4];
    device->copy(result, product.data(), sizeof result);
    ASSERT_TRUE(device->synchronize(Deadline::after(std::chrono::seconds(10))).ok());
    EXPECT_THAT(result, testing::ElementsAre(5, 11, 11, 25)) << device->info().name;
  }
}

// SiLU of gates that are -1 and 2, times ups that are 3 and 4.
TEST(CpuDevice, SwigluIsTheActivatedProductTimesTheOther) {
  for (const auto& device : {make_cpu_device({.num_threads = 2}), make_ref_device()}) {
    const float row[] = {-1, 2, 3, 4};
    const float identity[] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    auto a = std::move(device->allocate(sizeof row)).value();
    auto weight = std::move(device->allocate(sizeof identity)).value();
    auto products = std::move(device->allocate(sizeof row)).value();
    auto out = std::move(device->allocate(2 * sizeof(float))).value();
    device->copy(a.data(), row, sizeof row);
    device->copy(weight.data(), identity, sizeof identity);
    device->swiglu(
        {.a = dense_matrix(static_cast<const void*>(a.data()), DType::kFloat32, 1, 4),
         .gate_up = dense_matrix(static_cast<const void*>(weight.data()), DType::kFloat32, 4, 4),
         .products = products.as<float>(),
         .out = dense_matrix(out.data(), DType::kFloat32, 1, 2)});
    float result[2];
    device->copy(result, out.data(), sizeof result);
    ASSERT_TRUE(device->synchronize(Deadline::after(std::chrono::seconds(10))).ok());
    EXPECT_THAT(result, testing::ElementsAre(testing::FloatNear(-3 / (1 + std::exp(1.0F)), 1e-6F),
                                             testing::FloatNear(8 / (1 + std::exp(-2.0F)), 1e-5F)))
        << device->info().name;
  }
}

}  // namespace
}  // namespace millrace::kernels
