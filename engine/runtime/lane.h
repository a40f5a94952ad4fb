// SPDX-License-Identifier: Apache-2.0
// A context-parallel rank of a group with its tensor-parallel ranks, as a grid of its own: a short
// prompt runs on it while others run on the group's other lanes. Its engine shares device, weights
// and scratch memory with the group's engine: only one of the two prefills at a time, except that
// the lane's may run between two layers of a prompt of the group. Used by the engine's thread.
#pragma once

#include <cstdint>
#include <memory>

#include "common/clock.h"
#include "common/result.h"
#include "engine/engine.h"
#include "engine/ranks/rank_grid.h"
#include "kernels/api/device.h"

namespace millrace::engine {

class Lane {
 public:
  // Collective over the group's world. Device, grid and the group's engine outlive the lane.
  static Result<std::unique_ptr<Lane>> create(kernels::Device& device, const RankGrid& group,
                                              const Engine& engine, Deadline deadline);

  // The lane's number in the group: this rank's number among the context-parallel ranks.
  int number() const { return number_; }
  // The lane's grid, TP x 1.
  const RankGrid& grid() const { return *grid_; }
  Engine& engine() { return *engine_; }

 private:
  explicit Lane(int number) : number_(number) {}

  const int number_;
  std::unique_ptr<RankGrid> grid_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace millrace::engine
