// The last rows of a prompt, which run densely under any plan (kernels/index/tiling.h): their queries
// on every rank, and their attention.
//
// They lie on one rank, or on two where a stripe ends among them, and attend to all keys. Left
// there, 64 to 127 rows are as much work as thousands of sparse ones, and all ranks wait for it: on
// four, attention was shared 1.03 to 1 in the mean over the layers of MInference's plan, 1.08 in
// the worst. So with several context-parallel ranks it is dealt out by kv head: each rank has the K
// and V of all tokens, computes these rows for its kv heads, and what comes out is gathered while
// the other rows attend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "worker/exchange/partition.h"
#include "worker/index/layer_index.h"

namespace millrace::worker {

struct DenseRowsShape {
  int32_t num_query_heads = 0;  // of this rank's shard, as the next
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
  // As of KvExchange.
  Result<void> take_buffers();
  Result<void> connect(Deadline deadline);

  int64_t num_rows() const { return partition_->num_tokens() - first_position_; }

  // Collective: `q` [own rows, query heads, head_dim] is what this rank was told to project.
  Result<void> send_queries(const void* q, Deadline deadline);
  // Operations the device is given from here on see the queries of all dense rows.
  void finish_queries() { cp_->join(queries_arrived_); }
  // The last kLastRows of them.
  kernels::LastRows last_rows() const;

  // Whether attention is dealt out. With one rank it is not: the rows attend with all others, and
  // nothing below is called.
  bool dealt() const { return cp_->size() > 1; }
  // Query heads whose dense rows this rank computes: all of some kv heads, or none where there are
  // more ranks than kv heads.
  int32_t num_dealt_heads() const { return query_heads(cp_->rank()).count; }
  // The row tiles that attend apart from the dense ones: the first of `tiles`, which are this
  // rank's in ascending order.
  std::span<const kernels::RowTile> others(std::span<const kernels::RowTile> tiles) const;
  // Collective: has the device compute this rank's heads, and sends them on their way.
  // `window` and `sinks`: of the layer (kernels::AttentionParams). `covered_pairs`: [num_dealt_heads()] device
  // memory.
  Result<void> attend(const kernels::KvSlab& kv, int64_t window, const float* sinks,
                      int64_t* covered_pairs, Deadline deadline);
  // Operations the device is given from here on see all heads: in `out` [own rows, query heads,
  // head_dim] those of the dense rows that this rank owns, in lse() those of all dense rows.
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
  // This rank's dense rows, as runs of rows that it holds one after the other.
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
  LayerIndex index_;                     // of the dealt heads: everything
  kernels::DeviceBuffer dealt_q_;        // [num_rows, dealt heads, head_dim]
  // [ranks] blocks, each with the outputs [num_rows, its heads, head_dim], and their lse [its
  // heads, num_rows] from lse_offset_ on. Blocks are equal: those of ranks with fewer heads end
  // early. Another rank pushes its block of layer l + 1 once it has all K of that layer, the last
  // tile of which each rank sends behind its MLP of layer l, thus after its finish() of l has read
  // this.
  std::unique_ptr<comm::CollectiveBuffer> gathered_;
  int64_t lse_offset_ = 0;
  int64_t block_bytes_ = 0;
  comm::CollectiveMark gathered_all_{};
  kernels::DeviceBuffer lse_;
  std::vector<kernels::CopyPiece> to_out_, to_lse_;  // from gathered_
};

}  // namespace millrace::worker
