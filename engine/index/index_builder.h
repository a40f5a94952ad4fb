// SPDX-License-Identifier: Apache-2.0
// Builds the index of one layer for this rank's heads, sharing the work with the other
// context-parallel ranks:
//   closed form (dense, a-shape, elastic)     every rank, arithmetic
//   vertical-slash                            heads dealt over the cp ranks, lists gathered: bands
//                                             and columns are the same for all rows
//   block-sparse, adaptive                    every rank for its own row tiles
// For the same Q and K the lists do not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "engine/index/layer_index.h"
#include "kernels/api/device.h"
#include "plan/head_plan.h"

namespace millrace::engine {

// This rank's query rows of the layer, and where they are in memory.
struct LocalQueries {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim]
  int64_t num_rows = 0;
  int32_t num_query_heads = 0;
  float scale = 0;
};

class IndexBuilder {
 public:
  struct HeadRange {
    int32_t first = 0;  // this rank's first query head in the plan
    int32_t count = 0;
  };
  // All arguments outlive the builder. Allocates the memory for estimation over `num_tokens` tokens
  // and for exchanging lists of `shape`.
  static Result<IndexBuilder> create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                     const plan::HeadPlan& plan, HeadRange heads,
                                     int64_t num_tokens, const kernels::IndexShape& shape);

  // Collective over cp: has the device fill the lists of all heads. `tiles`: the rows of `queries`
  // that are to attend.
  Result<void> build(int32_t layer, const LocalQueries& queries,
                     std::span<const kernels::RowTile> tiles, const kernels::LastRows& last,
                     const kernels::KvSlab& kv, const kernels::IndexView& index, Deadline deadline);
  // For rows that run densely under any plan: fills what a device requires even then.
  void build_dense(int64_t num_tokens, const kernels::IndexView& index);

 private:
  IndexBuilder(kernels::Device& device, comm::DeviceCommunicator& cp, const plan::HeadPlan& plan,
               HeadRange heads)
      : device_(&device), cp_(&cp), plan_(&plan), heads_(heads) {}

  std::vector<int32_t> heads_of(int32_t layer, plan::Pattern pattern) const;
  void closed_forms(int64_t num_tokens, std::span<const kernels::ClosedForm> forms,
                    const kernels::IndexView& index);
  const plan::HeadPattern& pattern(int32_t layer, int32_t head) const {
    return plan_->at(layer, heads_.first + head);
  }
  Result<void> vertical_slash(int32_t layer, const std::vector<int32_t>& heads,
                              const kernels::LastRows& last, const kernels::KvSlab& kv,
                              const kernels::IndexView& index, Deadline deadline);
  Result<void> exchange_lists(const std::vector<int32_t>& heads, const kernels::IndexView& index,
                              Deadline deadline);
  void adaptive(int32_t layer, const std::vector<int32_t>& heads, const LocalQueries& queries,
                std::span<const kernels::RowTile> tiles, const kernels::KvSlab& kv,
                const kernels::IndexView& index);

  kernels::Device* device_;
  comm::DeviceCommunicator* cp_;
  const plan::HeadPlan* plan_;
  HeadRange heads_;
  kernels::DeviceBuffer column_sums_;    // [vertical-slash heads of this rank, tokens]
  kernels::DeviceBuffer diagonal_sums_;  // the same
  kernels::DeviceBuffer last_row_lse_;   // [vertical-slash heads of this rank, kLastRows]
  // Lists as they travel (index_builder.cc), for the largest number of heads that a rank is dealt.
  // Empty with one rank.
  int64_t packed_bytes_ = 0;
  kernels::DeviceBuffer packed_;  // [ranks, packed_bytes_]
};

}  // namespace millrace::engine
