// A context-parallel rank of a group, with its tensor-parallel ranks, as a grid of its own: where a
// short prompt runs while others run on the group's other lanes. Its engine shares device, weights
// and scratch memory with the group's: one of the two prefills at a time, or the lane's between two
// layers of a prompt of the group. The engine's thread.
#pragma once

#include <cstdint>
#include <memory>

#include "common/clock.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "worker/engine/engine.h"
#include "worker/ranks/rank_grid.h"

namespace millrace::worker {

class Lane {
 public:
  // Collective over the group's world. Device, grid and the group's engine outlive it.
  static Result<std::unique_ptr<Lane>> create(kernels::Device& device, const RankGrid& group,
                                              const Engine& engine, Deadline deadline);

  // Of the group's: the number of this rank among the context-parallel ones.
  int number() const { return number_; }
  // TP x 1.
  const RankGrid& grid() const { return *grid_; }
  Engine& engine() { return *engine_; }

 private:
  explicit Lane(int number) : number_(number) {}

  const int number_;
  std::unique_ptr<RankGrid> grid_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace millrace::worker
