// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/far_device/far_device_case.h"

#include "kernels/cpu/cpu_device.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/engine/ranks/late_communicator.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::worker {

namespace {

std::unique_ptr<kernels::Device> make_device(Memory memory) {
  auto device = kernels::make_cpu_device({.num_threads = 1});
  if (memory == Memory::kNear) return device;
  return std::make_unique<test::FarDevice>(std::move(device));
}

engine::DeviceGroups make_groups(kernels::Device& device, const engine::RankGrid& grid,
                                 Memory memory) {
  auto groups =
      must(engine::make_device_groups(device, grid, /*own_gpu=*/false, Deadline::after(kTimeout)));
  return memory == Memory::kFarLate ? test::late(device, std::move(groups)) : std::move(groups);
}

}  // namespace

DeviceRank::DeviceRank(const std::string& model, engine::GridShape shape,
                       std::unique_ptr<comm::Communicator> world, Memory memory)
    : grid(must(engine::RankGrid::create(std::move(world), shape, Deadline::after(kTimeout)))),
      device(make_device(memory)),
      weights(
          must(model::load_model_weights(model, grid.tensor_parallel(), DType::kFloat32, *device))),
      engine(must(engine::Engine::create(
          *device, *weights, grid, make_groups(*device, grid, memory),
          {.row_tile_tokens = 128, .stripe_tokens = 64, .end_process = [this](const Error& why) {
             ends.push_back(why);
           }}))) {}

std::vector<int32_t> token_ids() {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kPromptTokens; ++i) tokens.push_back((i * 7 + i / 5) % 101);
  return tokens;
}

plan::HeadPlan dense_plan(const DeviceRank& rank) {
  const auto& config = rank.weights->config;
  return plan::HeadPlan(config.num_layers, config.num_query_heads, {});
}

FarDeviceTest::FarDeviceTest(const std::vector<int32_t>& layer_windows) {
  auto config = layer_windows.empty() ? test::tiny_model_config()
                                      : test::tiny_model_config("MinistralForCausalLM");
  config.num_layers = 4;
  config.layer_windows = layer_windows;
  test::write_random_checkpoint(config, DType::kFloat32, 3, model_.path());
}

void FarDeviceTest::on_ranks(engine::GridShape shape, Memory memory,
                             const std::function<void(DeviceRank&)>& what) const {
  test::run_ranks(shape.tp * shape.cp, [&](std::unique_ptr<comm::Communicator> world) {
    DeviceRank rank(model_.path(), shape, std::move(world), memory);
    what(rank);
  });
}

}  // namespace millrace::worker
