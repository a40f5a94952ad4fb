// SPDX-License-Identifier: Apache-2.0
// The live layer's K and V: each rank's own rows as the projection writes them, and the slab of all
// tokens that attention reads, gathered over the context-parallel ranks.
//
// Rows are sent by row tile, as soon as they are projected, so that the ranks' links are busy while
// their devices compute the next tile: layer l + 1 arrives during the MLP of layer l. The
// projection writes a tile to where it is sent from: its own place among those of all ranks.
//
// Pages of a cached prefix come from the ranks that hold them (PrefixExchange). They arrive in
// memory behind the tiles; together these take as much as the tiles of a prompt of as many tokens
// with nothing cached.
//
// All ranks send tiles of equal size; rows beyond a rank's own are ignored. Tiles arrive ordered by
// rank and head, and one pass on the device puts them in order of position. At 1M tokens and 8
// heads of 128, that pass moves 8.6 GB a layer through memory while each link carries 3.8 GB, and
// takes a quarter of the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "engine/exchange/kv_shape.h"
#include "engine/exchange/partition.h"
#include "engine/exchange/prefix.h"
#include "engine/exchange/prefix_exchange.h"
#include "kernels/api/device.h"

namespace millrace::engine {

// One layer of this rank's own tokens, head-major.
struct LocalKv {
  const void* k = nullptr;  // [num_kv_heads, head_rows(), head_dim]: of each head, num_rows rows
                            // are used, in the rank's order
  const void* v = nullptr;
  DType dtype = DType::kFloat32;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t num_rows = 0;
  int64_t stride = 0;  // rows from one head to the next; 0: num_rows

  int64_t head_rows() const { return stride == 0 ? num_rows : stride; }
  int64_t row_bytes() const { return head_dim * dtype_bytes(dtype); }
};

class KvExchange {
 public:
  // `tile_rows`: rows of a row tile, the same on all ranks. `prefix`: what lies before the
  // partition's tokens. All objects passed in outlive the exchange.
  static Result<KvExchange> create(kernels::Device& device, const Partition& partition,
                                   const PromptPrefix& prefix, comm::DeviceCommunicator& cp,
                                   const KvShape& shape, int64_t tile_rows);
  // Takes the memory that other ranks push into, once all ranks have their exchange. kExhausted may
  // occur on one rank alone. Then, once all ranks have taken theirs and before anything is sent,
  // connect(), which is collective.
  Result<void> take_buffers();
  Result<void> connect(Deadline deadline);

  // Row tiles of the rank with the most rows: every rank sends as many. A rank with fewer rows may
  // have nothing to project in the last one.
  int64_t num_tiles() const { return std::ssize(tiles_); }

  // The K and V of a prefix, where there is one: prefetch_prefix() for the next layer, once the
  // layer before has attended, then bring_prefix() before the layer's first tile. As prefetch() and
  // bring() of PrefixExchange.
  Result<void> prefetch_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                               Deadline deadline) {
    return cached_.prefetch(source, layer, loaded, deadline);
  }
  Result<void> bring_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                            Deadline deadline);
  // Where the projection of the next layer writes this rank's rows of a tile.
  KvPlace destination(int64_t tile) const;
  // Collective. Sends the rows of a tile, once the device has written them as told.
  Result<void> send_k(int64_t tile, Deadline deadline) { return send(k_, tile, deadline); }
  Result<void> send_v(int64_t tile, Deadline deadline) { return send(v_, tile, deadline); }

  // Call it once all tiles are sent. They become the live layer: operations that the device is
  // given from here on see the slab's K, or V, and the own rows.
  void finish_k() { finish(k_); }
  void finish_v() { finish(v_); }
  LocalKv local() const;
  // With one rank the slab is that rank's own rows.
  kernels::KvSlab slab() const;

  // Operations that the device is given from here on run after everything that was sent.
  void settle();

 private:
  // K or V. The host waits for nothing here. finish() writes `own` and `slab`; the operations
  // between two calls of finish() read them; all of this is in the device's order. Other ranks push
  // into `gathered`, and their devices may be ahead by part of a layer. That is safe: a rank sends
  // layer l + 1 behind its MLP of layer l, which follows the attention of l, which needs the
  // outputs of the dense rows of all ranks (dense_rows.h). Each rank sends these after its own
  // finish_v() of l, the last to read `gathered`.
  struct Side {
    std::string_view name;
    kernels::DeviceBuffer own;  // [kv heads, own rows, head_dim]; alone, of all tokens
    // With several ranks:
    std::unique_ptr<comm::CollectiveBuffer> gathered;  // tile after tile, each [ranks, kv heads,
                                                       // rows, head_dim]; then cached_'s memory
    kernels::DeviceBuffer slab;                        // [kv heads, tokens, head_dim]
    comm::CollectiveMark all_but_last_arrived{};       // all tiles but the last
    comm::CollectiveMark all_arrived{};
  };
  struct Tile {
    int64_t first_row = 0;
    int64_t num_rows = 0;  // sent by every rank
  };
  // Copies of tiles that have the same number of rows. Pieces are those of one head, from
  // `gathered`.
  struct Copies {
    int64_t tile_rows = 0;
    std::vector<kernels::CopyPiece> to_slab, to_own;
  };

  KvExchange(kernels::Device& device, const Partition& partition, const PromptPrefix& prefix,
             comm::DeviceCommunicator& cp, const KvShape& shape)
      : device_(&device),
        partition_(&partition),
        prefix_(&prefix),
        cp_(&cp),
        shape_(shape),
        cached_(device, prefix, cp, shape) {}

  bool alone() const { return cp_->size() == 1; }
  int64_t own_rows() const { return partition_->num_tokens(cp_->rank()); }
  // Rows from one head to the next in `own`; with one rank, those of the slab.
  int64_t own_stride() const { return alone() ? partition_->num_tokens() : own_rows(); }
  void cut_tiles(int64_t tile_rows);
  int64_t heads_row_bytes() const { return shape_.num_kv_heads * shape_.row_bytes(); }
  int64_t tiles_bytes() const { return cp_->size() * max_rows_ * heads_row_bytes(); }  // of a side
  // The offset in `gathered` of a rank's rows of a tile.
  int64_t gathered_offset(const Tile& tile, int rank) const;
  Result<void> allocate(Side& side);
  std::byte* own_place(const Side& side, const Tile& tile) const;
  Result<void> send(Side& side, int64_t tile, Deadline deadline);
  void finish(const Side& side);

  kernels::Device* device_;
  const Partition* partition_;
  const PromptPrefix* prefix_;
  comm::DeviceCommunicator* cp_;
  KvShape shape_;
  int64_t max_rows_ = 0;  // of the rank with the most
  std::vector<Tile> tiles_;
  Copies last_tile_, other_tiles_;
  PrefixExchange cached_;
  Side k_{.name = "keys"}, v_{.name = "values"};
};

}  // namespace millrace::engine
