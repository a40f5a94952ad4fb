// SPDX-License-Identifier: Apache-2.0
// Recall and density by layer and head, for those who ask: shows which heads lose what a sparse
// plan leaves out, and which it leaves nothing out of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/api/communicator.h"
#include "common/clock.h"
#include "common/result.h"

namespace millrace::engine {

// The measured rows of one head in one layer, and the pairs of all its rows. Plain bytes, so that
// ranks can exchange it.
struct HeadRecall {
  // A NaN counts as 0.
  void add(float share);
  void add(const HeadRecall& other);

  // Both 1 where nothing was measured: the head is dense, or the prompt is short.
  double mean() const { return num_rows == 0 ? 1.0 : sum / static_cast<double>(num_rows); }
  float least = 1;  // of any row

  // Covered over causal (query, key) pairs; 1 where none were counted.
  double density() const { return causal_pairs == 0 ? 1.0 : covered_pairs / causal_pairs; }

  double sum = 0;
  int64_t num_rows = 0;
  double covered_pairs = 0;
  double causal_pairs = 0;
};

// [num_layers, num_heads], of all heads of the model.
class HeadRecalls {
 public:
  HeadRecalls() = default;
  HeadRecalls(int32_t num_layers, int32_t num_heads)
      : num_heads_(num_heads), heads_(static_cast<size_t>(num_layers) * num_heads) {}

  bool empty() const { return heads_.empty(); }
  int32_t num_heads() const { return num_heads_; }
  HeadRecall& at(int32_t layer, int32_t head) { return heads_[index(layer, head)]; }
  // Layer by layer.
  std::span<const HeadRecall> all() const { return heads_; }

  // Collective: what all ranks measured, on every rank. A rank that measured nothing for a head, or
  // nothing at all, does not affect the result. All have the same shape.
  Result<void> add_over(comm::Communicator& world, Deadline deadline);

 private:
  size_t index(int32_t layer, int32_t head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(num_heads_) + static_cast<size_t>(head);
  }

  int32_t num_heads_ = 0;
  std::vector<HeadRecall> heads_;
};

}  // namespace millrace::engine
