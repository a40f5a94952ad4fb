// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/rank_grid.h"

namespace millrace::engine {

Result<RankGrid> RankGrid::create(std::unique_ptr<comm::Communicator> world, GridShape shape,
                                  Deadline deadline) {
  if (shape.tp < 1 || shape.cp < 1 || shape.tp * shape.cp != world->size()) {
    return error(Errc::kInvalidArgument, "tp {} x cp {} needs {} ranks, mpirun started {}",
                 shape.tp, shape.cp, shape.tp * shape.cp, world->size());
  }
  RankGrid grid;
  grid.shape_ = shape;
  const int rank = world->rank();
  MR_ASSIGN_OR_RETURN(grid.tp_, world->split(rank / shape.tp, rank, deadline));
  MR_ASSIGN_OR_RETURN(grid.cp_, world->split(rank % shape.tp, rank, deadline));
  grid.world_ = std::move(world);
  return grid;
}

}  // namespace millrace::engine
