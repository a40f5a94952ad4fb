// A cached prefix among context-parallel ranks: each brings the pages that it holds, and all have the K and V of
// all pages in their slabs.
//
// Pages travel in chunks, of every rank's pages as many at a time, so that all links carry both ways, and as the
// pages have them: 8-bit floats become what they stand for on their way into the slab, behind the links. Those of
// layer l + 1 travel as soon as the attention of l is enqueued, beside the MLP of l. Measured on four GPUs, 131,072
// tokens: docs/notebook/prefix-on-gpus.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "worker/exchange/kv_shape.h"
#include "worker/exchange/prefix.h"

namespace millrace::worker {

class PrefixExchange {
 public:
  // All outlive the exchange. With one rank, or no page, there is nothing to exchange.
  PrefixExchange(kernels::Device& device, const PromptPrefix& prefix, comm::DeviceCommunicator& cp,
                 const KvShape& shape);

  // Of device memory that all ranks reach, for K and as much for V.
  int64_t bytes() const;
  // That memory, from here on.
  void use(void* k, void* v);

  // The next two are collective and called for the layers in order. `source`: of this rank's pages. Where it fails
  // on a rank, the others have garbage: `loaded` says so, on that rank alone.
  //
  // Once the layer before has attended: pages of `layer` go on their way. May be left out.
  Result<void> prefetch(PrefixSource& source, int32_t layer, Result<void>& loaded,
                        Deadline deadline);
  // Operations the device is given from here on see the pages of `layer` in `slab`.
  Result<void> bring(PrefixSource& source, int32_t layer, const KvPlace& slab, Result<void>& loaded,
                     Deadline deadline);

 private:
  // Pages that travel together: of each rank's, as many from the same one on.
  struct Chunk {
    int64_t first = 0;
    int64_t count = 0;  // of this rank's
    // Of one head, from the chunk's place to the slab; the ones of pages in the compute dtype, the others of 8-bit
    // floats.
    std::vector<kernels::CopyPiece> copied;
    std::vector<kernels::Float8Piece> decoded;
    comm::CollectiveMark arrived{};  // of the layer sent last
  };

  void cut();
  // Rows [row, row + num_rows) of one head, as they arrive, are those of tokens from `token` on.
  void add_piece(Chunk& chunk, int64_t row, int64_t token, int64_t num_rows) const;
  bool float8() const { return prefix_->float8 != nullptr; }
  // As pages have it.
  int64_t row_bytes() const { return float8() ? shape_.head_dim : shape_.row_bytes(); }
  int64_t rank_bytes() const { return shape_.num_kv_heads * chunk_rows_ * row_bytes(); }
  std::byte* place(void* side, size_t chunk) const;
  Result<void> send(size_t chunk, PrefixSource& source, int32_t layer, Result<void>& loaded,
                    Deadline deadline);
  void put(size_t chunk, int32_t layer, const KvPlace& slab);
  void decode(const Chunk& chunk, const std::byte* rows, int32_t layer, float KvScale::*side,
              void* slab, int64_t slab_rows);

  kernels::Device* device_;
  const PromptPrefix* prefix_;
  comm::DeviceCommunicator* cp_;
  KvShape shape_;
  std::vector<Chunk> chunks_;
  int64_t chunk_rows_ = 0;  // of one rank in the largest chunk
  // [chunks on their way, used in turn; ranks; kv heads; chunk_rows_; head_dim]
  void* k_ = nullptr;
  void* v_ = nullptr;
  int32_t prefetched_ = -1;  // the layer that prefetch() sent last
};

}  // namespace millrace::worker
