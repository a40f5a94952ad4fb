// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/device_choice.h"

#include <gtest/gtest.h>

#include "engine/ranks/machine_share.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

using Kind = DeviceChoice::Kind;

TEST(DeviceChoice, ReadsEveryForm) {
  EXPECT_EQ(parse_device_choice("auto")->kind, Kind::kAuto);
  EXPECT_EQ(parse_device_choice("cpu")->kind, Kind::kCpu);
  const auto any = parse_device_choice("cuda");
  EXPECT_EQ(any->kind, Kind::kCuda);
  EXPECT_EQ(any->index, -1);
  const auto third = parse_device_choice("cuda:3");
  EXPECT_EQ(third->kind, Kind::kCuda);
  EXPECT_EQ(third->index, 3);
}

TEST(DeviceChoice, RefusesWhatIsNoneAndSaysWhatIs) {
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", "CPU"}) {
    const auto choice = parse_device_choice(text);
    ASSERT_FALSE(choice.ok()) << text;
    EXPECT_EQ(choice.error().code, Errc::kInvalidArgument);
    EXPECT_NE(choice.error().message.find("auto, cpu, cuda or cuda:N"), std::string::npos);
  }
}

TEST(RankDevice, CpuHasTheRanksThreads) {
  const auto made =
      make_rank_device({.kind = Kind::kCpu}, std::nullopt, {.ranks_here = 3, .num_threads = 2});
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  EXPECT_EQ((*made)->info().num_threads, 2);
}

std::vector<int> sharers(const std::vector<std::string>& ids) {
  std::vector<int> counts(ids.size());
  test::run_ranks(static_cast<int>(ids.size()), [&](std::unique_ptr<comm::Communicator> world) {
    const auto rank = static_cast<size_t>(world->rank());
    kernels::DeviceInfo info;
    info.id = ids[rank];
    const auto count = num_ranks_on_device(*world, info, Deadline::after(std::chrono::seconds(60)));
    counts[rank] = count.ok() ? *count : -1;
  });
  return counts;
}

// Each process may see a different GPU under number 0, or all processes may see all GPUs.
TEST(RanksOnADevice, AreThoseThatSeeTheSameOne) {
  EXPECT_EQ(sharers({"a", "b", "c"}), (std::vector{1, 1, 1}));
  EXPECT_EQ(sharers({"a", "b", "a", "b", "a"}), (std::vector{3, 2, 3, 2, 3}));
}

TEST(RanksOnADevice, AreAllOfAMachineOnItsCpu) {
  EXPECT_EQ(sharers({"", "", ""}), (std::vector{3, 3, 3}));
}

std::optional<DType> chosen(bool gpu, std::optional<DType> wanted, DType stored) {
  kernels::DeviceInfo info;
  info.float32_compute = !gpu;
  info.float16_compute = gpu;
  return compute_dtype_on(info, wanted, stored);
}

TEST(ComputeDType, IsOpenOnACpuWhateverIsStored) {
  for (const DType stored : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(chosen(/*gpu=*/false, std::nullopt, stored), std::nullopt);
  }
}

TEST(ComputeDType, IsThe16BitOneOfTheCheckpointOnAGpu) {
  EXPECT_EQ(chosen(/*gpu=*/true, std::nullopt, DType::kFloat16), DType::kFloat16);
  EXPECT_EQ(chosen(/*gpu=*/true, std::nullopt, DType::kBFloat16), DType::kBFloat16);
  EXPECT_EQ(chosen(/*gpu=*/true, std::nullopt, DType::kFloat32), DType::kBFloat16);
}

TEST(ComputeDType, IsWhatIsWanted) {
  EXPECT_EQ(chosen(/*gpu=*/false, DType::kBFloat16, DType::kFloat16), DType::kBFloat16);
  EXPECT_EQ(chosen(/*gpu=*/true, DType::kFloat16, DType::kBFloat16), DType::kFloat16);
}

TEST(RankDevice, CpuIsRefusedInFloat16) {
  const auto made = make_rank_device({.kind = Kind::kCpu}, DType::kFloat16, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Errc::kUnsupported);
  EXPECT_NE(made.error().message.find("float32 or bfloat16"), std::string::npos);
  const auto any = make_rank_device({}, DType::kFloat16, {});
  EXPECT_EQ(any.ok(), kernels::num_cuda_devices() > 0);
}

TEST(RankDevice, AutoIsTheCpuInFloat32OrWithoutAGpu) {
  const auto exact = make_rank_device({}, DType::kFloat32, {});
  ASSERT_TRUE(exact.ok());
  EXPECT_TRUE((*exact)->info().host_memory);
  const auto any = make_rank_device({}, std::nullopt, {});
  ASSERT_TRUE(any.ok());
  EXPECT_EQ((*any)->info().host_memory, kernels::num_cuda_devices() == 0);
}

TEST(RankDevice, CudaIsRefusedInFloat32AndWhereThereIsNone) {
  const auto exact = make_rank_device({.kind = Kind::kCuda}, DType::kFloat32, {});
  ASSERT_FALSE(exact.ok());
  EXPECT_EQ(exact.error().code, Errc::kUnsupported);
  const auto none = make_rank_device({.kind = Kind::kCuda, .index = 4711}, std::nullopt, {});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("cuda:4711"), std::string::npos);
}

}  // namespace
}  // namespace millrace::engine
