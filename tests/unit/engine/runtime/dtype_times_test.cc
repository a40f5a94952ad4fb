// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/dtype_times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

TEST(DTypeTimes, BFloat16IsTakenWhereItSavesATenth) {
  EXPECT_EQ(faster_dtype({.float32_s = 2, .bfloat16_s = 1}), DType::kBFloat16);
  EXPECT_EQ(faster_dtype({.float32_s = 1, .bfloat16_s = 0.89}), DType::kBFloat16);
}

TEST(DTypeTimes, Float32IsTakenWhereBothTakeAboutAsLong) {
  for (const double bfloat16_s : {0.91, 1.0, 1.6}) {
    EXPECT_EQ(faster_dtype({.float32_s = 1, .bfloat16_s = bfloat16_s}), DType::kFloat32);
  }
}

TEST(DTypeTimes, AreMeasuredForAnyModel) {
  const auto device = kernels::make_cpu_device({.num_threads = 2});
  auto config = test::tiny_model_config();
  config.head_dim = 24;  // which attention does not take
  const auto times = measure_dtypes(*device, config);
  ASSERT_TRUE(times.ok()) << times.error().to_string();
  for (const double seconds : {times->float32_s, times->bfloat16_s}) {
    EXPECT_GT(seconds, 0);
    EXPECT_TRUE(std::isfinite(seconds));
  }
}

// The dtype that each of two ranks computes in when they are asked for `wanted`.
std::vector<DType> dtypes_of_ranks(const std::vector<std::optional<DType>>& wanted) {
  test::TempDirectory directory;
  test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 11, directory.path());
  std::mutex mutex;
  std::vector<DType> dtypes;
  test::run_ranks(static_cast<int>(wanted.size()), [&](std::unique_ptr<comm::Communicator> world) {
    auto options = test::rank_options(directory.path(), {.tp = 1, .cp = world->size()});
    options.compute_dtype = wanted[static_cast<size_t>(world->rank())];
    const auto runtime = RankRuntime::create(std::move(world), options);
    const std::lock_guard lock(mutex);
    if (runtime.ok()) dtypes.push_back((*runtime)->weights().compute_dtype);
  });
  return dtypes;
}

TEST(RanksDType, IsWhatAllAreAskedFor) {
  EXPECT_EQ(dtypes_of_ranks({DType::kBFloat16, DType::kBFloat16}),
            (std::vector{DType::kBFloat16, DType::kBFloat16}));
  EXPECT_TRUE(dtypes_of_ranks({DType::kBFloat16, DType::kFloat32}).empty());
}

TEST(RanksDType, IsOneForAllWhereEachMeasures) {
  const auto dtypes = dtypes_of_ranks({std::nullopt, std::nullopt});
  ASSERT_EQ(dtypes.size(), 2u);
  EXPECT_EQ(dtypes[0], dtypes[1]);
  EXPECT_NE(dtypes[0], DType::kFloat16);
}

}  // namespace
}  // namespace millrace::engine
