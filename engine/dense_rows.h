// SPDX-License-Identifier: Apache-2.0
// The last rows of a prompt, which run densely under any plan (kernels/index/tiling.h): makes their
// queries available on every rank, and computes their attention.
//
// These rows lie on one rank, or on two where a stripe ends among them, and attend to all keys.
// Left there, 64 to 127 rows are as much work as thousands of sparse ones, and all ranks wait for
// it: on four ranks the imbalance of attention (most over mean) was 1.03 on average over the layers
// of MInference's plan, and 1.08 in the worst layer. So with several context-parallel ranks the
// work is dealt out by kv head. Each rank has the K and V of all tokens and computes these rows for
// its kv heads; the outputs are gathered while the other rows attend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "engine/exchange/partition.h"
#include "engine/index/layer_index.h"
#include "kernels/api/device.h"

namespace millrace::engine {

struct DenseRowsShape {
  int32_t num_query_heads = 0;  // of this rank's shard, as num_kv_heads
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;
  float scale = 0;

  int64_t head_bytes() const { return head_dim * dtype_bytes(dtype); }
};

class DenseRows {
 public:
  // Device, communicator and partition outlive the rows.
  static Result<DenseRows> create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                  const Partition& partition, const DenseRowsShape& shape);
  // See KvExchange for both.
  Result<void> take_buffers();
  Result<void> connect(Deadline deadline);

  int64_t num_rows() const { return partition_->num_tokens() - first_position_; }

  // Collective. `q` [own rows, query heads, head_dim] is where this rank was told to project.
  Result<void> send_queries(const void* q, Deadline deadline);
  // Operations given to the device from here on see the queries of all dense rows.
  void finish_queries() { cp_->join(queries_arrived_); }
  // The last kLastRows of the dense rows.
  kernels::LastRows last_rows() const;

  // Whether attention is dealt out. With one rank it is not: the dense rows attend with all others,
  // and nothing below is called.
  bool dealt() const { return cp_->size() > 1; }
  // Query heads whose dense rows this rank computes: all those of some kv heads, or none where
  // there are more ranks than kv heads.
  int32_t num_dealt_heads() const { return query_heads(cp_->rank()).count; }
  // The first of them, in the shard.
  int32_t first_dealt_head() const { return query_heads(cp_->rank()).first; }
  // The row tiles that attend separately from the dense ones: the first of `tiles`, which are this
  // rank's in ascending order.
  std::span<const kernels::RowTile> others(std::span<const kernels::RowTile> tiles) const;
  // Collective: has the device compute this rank's heads and starts sending the results. `window`
  // and `sinks`: of the layer (kernels::AttentionParams). `covered_pairs`: [num_dealt_heads()] in
  // device memory.
  Result<void> attend(const kernels::KvSlab& kv, int64_t window, const float* sinks,
                      int64_t* covered_pairs, Deadline deadline);
  // Operations given to the device from here on see all heads: `out` [own rows, query heads,
  // head_dim] has the dense rows that this rank owns, lse() has all dense rows.
  void finish(void* out);
  const float* lse() const { return lse_.as<float>(); }  // [query heads, num_rows()] natural log

 private:
  struct HeadRange {
    int32_t first = 0;
    int32_t count = 0;
  };

  DenseRows(kernels::Device& device, comm::DeviceCommunicator& cp, const Partition& partition,
            const DenseRowsShape& shape)
      : device_(&device),
        cp_(&cp),
        partition_(&partition),
        shape_(shape),
        first_position_(kernels::first_dense_position(partition.num_tokens())) {}

  HeadRange kv_heads(int rank) const;
  HeadRange query_heads(int rank) const;
  kernels::KvSlab dealt_part(const kernels::KvSlab& kv) const;
  // This rank's dense rows, as runs of rows that are consecutive on this rank.
  std::vector<OwnedRun> own_runs() const;
  int64_t row_bytes() const { return shape_.num_query_heads * shape_.head_bytes(); }
  std::byte* query(int64_t position) const {
    return q_.as<std::byte>() + (position - first_position_) * row_bytes();
  }
  Result<void> deal();
  void find_pieces();
  Result<void> make_index();

  kernels::Device* device_;
  comm::DeviceCommunicator* cp_;
  const Partition* partition_;
  DenseRowsShape shape_;
  int64_t first_position_;

  kernels::DeviceBuffer q_;  // [num_rows, query heads, head_dim]
  comm::CollectiveMark queries_arrived_{};

  // Where attention is dealt out:
  std::vector<kernels::RowTile> tiles_;  // of the dense rows alone
  LayerIndex index_;                     // of the dealt heads; covers everything
  kernels::DeviceBuffer dealt_q_;        // [num_rows, dealt heads, head_dim]
  // [ranks] blocks. Each has the outputs [num_rows, its heads, head_dim] and, from lse_offset_ on,
  // their lse [its heads, num_rows]. Blocks are of equal size; those of ranks with fewer heads are
  // not filled to the end. Another rank pushes its block of layer l + 1 only once it has all K of
  // that layer. Each rank sends the last tile of that K behind its MLP of layer l, thus after its
  // finish() of layer l has read this buffer.
  std::unique_ptr<comm::CollectiveBuffer> gathered_;
  int64_t lse_offset_ = 0;
  int64_t block_bytes_ = 0;
  comm::CollectiveMark gathered_all_{};
  kernels::DeviceBuffer lse_;
  std::vector<kernels::CopyPiece> to_out_, to_lse_;  // from gathered_
};

}  // namespace millrace::engine
