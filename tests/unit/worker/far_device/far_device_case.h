// SPDX-License-Identifier: Apache-2.0
// Ranks on a device that always lags behind and whose memory the host cannot touch, and ranks on
// the same device in host memory. Both compute the same, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/check.h"
#include "engine/engine.h"
#include "engine/ranks/rank_grid.h"
#include "kernels/api/device.h"
#include "model/weights.h"
#include "tests/support/far_device.h"
#include "tests/support/temp_directory.h"

namespace millrace::worker {

inline constexpr auto kTimeout = std::chrono::seconds(60);
inline constexpr int kPromptTokens = 715;

enum class Memory {
  kNear,
  kFar,      // collectives are done when called, as when ranks share a GPU
  kFarLate,  // collectives run concurrently with the device's operations
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(*result);
}

// The equivalent of RankRuntime on a device that the test chooses.
struct DeviceRank {
  DeviceRank(const std::string& model, engine::GridShape shape,
             std::unique_ptr<comm::Communicator> world, Memory memory);

  int number() const { return grid.world().rank(); }
  // The errors that would end the process if it were one.
  std::vector<Error> ends;
  // Not for ranks in near memory.
  test::FarDevice& far_device() { return dynamic_cast<test::FarDevice&>(*device); }

  engine::RankGrid grid;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<model::ModelWeights> weights;
  engine::Engine engine;
};

std::vector<int32_t> token_ids();
plan::HeadPlan dense_plan(const DeviceRank& rank);

class FarDeviceTest : public testing::Test {
 protected:
  // A model of four layers, so that resources that layers take in turn are reused. `layer_windows`:
  // as in model::ModelConfig.
  explicit FarDeviceTest(const std::vector<int32_t>& layer_windows = {});

  // Runs each rank on a thread.
  void on_ranks(engine::GridShape shape, Memory memory,
                const std::function<void(DeviceRank&)>& what) const;
  void on_one_rank(Memory memory, const std::function<void(DeviceRank&)>& what) const {
    on_ranks({.tp = 1, .cp = 1}, memory, what);
  }

 private:
  test::TempDirectory model_;
};

}  // namespace millrace::worker
