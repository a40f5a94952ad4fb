// SPDX-License-Identifier: Apache-2.0
// Exchanges a cached prefix among context-parallel ranks: each rank brings the pages that it holds,
// and all ranks get the K and V of all pages in their slabs.
//
// Pages travel in chunks, each with equally many pages of every rank, so that all links carry both
// ways. They travel in the form in which they are stored: 8-bit floats are decoded on their way
// into the slab, after the links. The pages of layer l + 1 travel as soon as the attention of l is
// enqueued, while the MLP of l runs. Measured on four GPUs, 131,072 tokens:
// docs/notebook/prefix-on-gpus.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "engine/exchange/kv_shape.h"
#include "engine/exchange/prefix.h"
#include "kernels/api/device.h"

namespace millrace::engine {

class PrefixExchange {
 public:
  // The arguments outlive the exchange. With one rank, or no page, there is nothing to exchange.
  PrefixExchange(kernels::Device& device, const PromptPrefix& prefix, comm::DeviceCommunicator& cp,
                 const KvShape& shape);

  // How many bytes the exchange needs of device memory that all ranks can reach: this many for K,
  // and as many again for V.
  int64_t bytes() const;
  // Sets that memory for all that follows.
  void use(void* k, void* v);

  // prefetch() and bring() are collective and called for the layers in order. `source` loads this
  // rank's pages. If it fails on a rank, that rank alone gets the error, in `loaded`, and the
  // others get garbage.
  //
  // Sends the first pages of `layer`, once the layer before has attended. May be left out.
  Result<void> prefetch(PrefixSource& source, int32_t layer, Result<void>& loaded,
                        Deadline deadline);
  // Sends the rest. Operations that the device is given from here on see the pages of `layer` in
  // `slab`.
  Result<void> bring(PrefixSource& source, int32_t layer, const KvPlace& slab, Result<void>& loaded,
                     Deadline deadline);

 private:
  // Pages that travel together: of each rank's pages, as many from the same number on.
  struct Chunk {
    int64_t first = 0;
    int64_t count = 0;  // of this rank's pages
    // Pieces of one head, from the chunk's place to the slab: `copied` of pages in the compute
    // dtype, `decoded` of pages in 8-bit floats.
    std::vector<kernels::CopyPiece> copied;
    std::vector<kernels::Float8Piece> decoded;
    comm::CollectiveMark arrived{};  // of the layer sent last
  };

  void cut();
  // Adds rows [row, row + num_rows) of one head, as they arrive: those of the tokens from `token`
  // on.
  void add_piece(Chunk& chunk, int64_t row, int64_t token, int64_t num_rows) const;
  bool float8() const { return prefix_->float8 != nullptr; }
  // Of a row in the form in which pages are stored.
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
  int64_t chunk_rows_ = 0;  // rows of one rank in the largest chunk
  // [chunks on their way, used in turn; ranks; kv heads; chunk_rows_; head_dim]
  void* k_ = nullptr;
  void* v_ = nullptr;
  int32_t prefetched_ = -1;  // the layer that prefetch() sent last
};

}  // namespace millrace::engine
