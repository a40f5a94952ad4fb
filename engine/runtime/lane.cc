// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/lane.h"

#include <utility>

#include "engine/ranks/staged_communicator.h"

namespace millrace::engine {

// Its context-parallel row has only one rank, so nothing is moved and any transport will do.
Result<std::unique_ptr<Lane>> Lane::create(kernels::Device& device, const RankGrid& group,
                                           const Engine& engine, Deadline deadline) {
  std::unique_ptr<Lane> lane(new Lane(group.cp().rank()));
  MR_ASSIGN_OR_RETURN(auto world,
                      group.world().split(lane->number_, group.world().rank(), deadline));
  const GridShape shape{.tp = group.shape().tp, .cp = 1};
  MR_ASSIGN_OR_RETURN(auto grid, RankGrid::create(std::move(world), shape, deadline));
  lane->grid_ = std::make_unique<RankGrid>(std::move(grid));
  DeviceGroups groups{.tp = engine.groups().tp,
                      .cp = std::make_shared<StagedCommunicator>(device, lane->grid_->cp()),
                      .transport = engine.groups().transport};
  lane->engine_ = std::make_unique<Engine>(engine.on_grid(*lane->grid_, std::move(groups)));
  return lane;
}

}  // namespace millrace::engine
