// SPDX-License-Identifier: Apache-2.0
// The TP x CP grid of a group. Tensor-parallel ranks are neighbours: world rank = cp_rank * tp +
// tp_rank.
#pragma once

#include <memory>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "model/weights.h"

namespace millrace::engine {

struct GridShape {
  int tp = 1;
  int cp = 1;
};

class RankGrid {
 public:
  // Collective. kInvalidArgument when tp * cp is not the number of ranks.
  static Result<RankGrid> create(std::unique_ptr<comm::Communicator> world, GridShape shape,
                                 Deadline deadline);

  comm::Communicator& world() const { return *world_; }
  comm::Communicator& tp() const { return *tp_; }  // same tokens, other heads
  comm::Communicator& cp() const { return *cp_; }  // same heads, other tokens
  GridShape shape() const { return shape_; }
  bool is_root() const { return world_->rank() == 0; }
  model::TensorParallel tensor_parallel() const { return {tp_->rank(), tp_->size()}; }

 private:
  RankGrid() = default;
  GridShape shape_;
  std::unique_ptr<comm::Communicator> world_;
  std::unique_ptr<comm::Communicator> tp_;
  std::unique_ptr<comm::Communicator> cp_;
};

}  // namespace millrace::engine
