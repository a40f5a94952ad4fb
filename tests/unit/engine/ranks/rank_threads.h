// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of the test process, each with its own device, weights and engine.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local_group.h"
#include "engine/runtime/rank_runtime.h"

namespace millrace::test {

inline engine::RankOptions rank_options(const std::string& model_directory,
                                        engine::GridShape grid) {
  return {.model_directory = model_directory,
          .grid = grid,
          .compute_dtype = DType::kFloat32,
          .engine = {.row_tile_tokens = 128, .stripe_tokens = 64},
          .num_threads = 1,
          .crossover_tokens = 0,
          .startup_timeout = std::chrono::seconds(60)};
}

// Runs `body` once for each rank and waits for all of them. `body` must not assert; it returns what
// is to be checked.
inline void run_ranks(int num_ranks,
                      const std::function<void(std::unique_ptr<comm::Communicator>)>& body) {
  auto group = comm::LocalGroup::create(num_ranks);
  std::vector<std::jthread> threads;
  for (auto& communicator : group) {
    threads.emplace_back([&body, c = std::move(communicator)]() mutable { body(std::move(c)); });
  }
}

}  // namespace millrace::test
