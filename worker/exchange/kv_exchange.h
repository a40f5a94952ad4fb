// The live layer's K and V: each rank's own rows as the projection writes them, and the slab of all
// tokens that attention reads, gathered over the context-parallel ranks.
//
// Rows are sent by row tile, as soon as they are projected, so that the ranks' links are busy while
// their devices compute the next tile: layer l + 1 arrives during the MLP of layer l. The
// projection writes a tile where it is sent from, its own place among those of all ranks.
//
// Pages of a cached prefix come from the ranks that hold them (PrefixExchange), behind the tiles, in memory that a
// prompt of as many tokens takes for tiles where nothing is cached.
//
// All ranks send equal tiles: what goes beyond a rank's own rows is not looked at. Tiles arrive by
// rank and head, and are put in the order of positions by one pass of the device's: at 1M tokens of
// 8 heads of 128 that moves 8.6 GB a layer through memory where each link carries 3.8, in a quarter
// of the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "worker/exchange/kv_shape.h"
#include "worker/exchange/partition.h"
#include "worker/exchange/prefix.h"
#include "worker/exchange/prefix_exchange.h"

namespace millrace::worker {

// One layer of this rank's own tokens, head-major.
struct LocalKv {
  const void* k = nullptr;  // [num_kv_heads, head_rows(), head_dim], num_rows of them each, in the
                            // rank's order
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
  // `tile_rows`: of a row tile, the same on all ranks. `prefix`: what lies before the partition's
  // tokens; outlives the exchange, as the others.
  static Result<KvExchange> create(kernels::Device& device, const Partition& partition,
                                   const PromptPrefix& prefix, comm::DeviceCommunicator& cp,
                                   const KvShape& shape, int64_t tile_rows);
  // What other ranks push into, on ranks that all have their exchange. kExhausted may be one rank's
  // alone. Collective, before anything is sent, once all have taken theirs: connect().
  Result<void> take_buffers();
  Result<void> connect(Deadline deadline);

  // Row tiles of the rank with most rows: as many as every rank sends. A rank with fewer rows has
  // nothing to project in the last one.
  int64_t num_tiles() const { return std::ssize(tiles_); }

  // Where there is a prefix, its K and V: PrefixExchange::prefetch() for the next layer, once the one before has
  // attended, and bring() before a layer's first tile.
  Result<void> prefetch_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                               Deadline deadline) {
    return cached_.prefetch(source, layer, loaded, deadline);
  }
  Result<void> bring_prefix(PrefixSource& source, int32_t layer, Result<void>& loaded,
                            Deadline deadline);
  // Where the projection of the next layer writes this rank's rows of a tile.
  KvPlace destination(int64_t tile) const;
  // Collective: the rows of a tile that the device was told to write go on their way.
  Result<void> send_k(int64_t tile, Deadline deadline) { return send(k_, tile, deadline); }
  Result<void> send_v(int64_t tile, Deadline deadline) { return send(v_, tile, deadline); }

  // All tiles are sent, and become the live layer: operations the device is given from here on see
  // the slab's K, or V, and the own rows.
  void finish_k() { finish(k_); }
  void finish_v() { finish(v_); }
  LocalKv local() const;
  // With one rank the slab is the own rows.
  kernels::KvSlab slab() const;

  // Operations the device is given from here on come after all that was sent.
  void settle();

 private:
  // K or V. Nothing here is waited for by the host. `own` and `slab` are written by finish() and
  // read by operations between two of them, all in the device's order. `gathered` is pushed into by
  // other ranks, whose devices may be ahead by part of a layer: a rank sends layer l + 1 behind its
  // MLP of layer l, which follows the attention of l, which needs the outputs of the dense rows of
  // all ranks (dense_rows.h); each rank sends these after its own finish_v() of l, the last to read
  // `gathered`.
  struct Side {
    std::string_view name;
    kernels::DeviceBuffer own;  // [kv heads, own rows, head_dim]; alone, of all tokens
    // With several ranks:
    std::unique_ptr<comm::CollectiveBuffer> gathered;  // a tile after the other, each [ranks, kv
                                                       // heads, rows, head_dim]; then cached_'s
    kernels::DeviceBuffer slab;                        // [kv heads, tokens, head_dim]
    comm::CollectiveMark all_but_last_arrived{};       // of the tiles
    comm::CollectiveMark all_arrived{};
  };
  struct Tile {
    int64_t first_row = 0;
    int64_t num_rows = 0;  // sent by every rank
  };
  // Of tiles with equally many rows; pieces are one head's, from `gathered`.
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
  // Of a head in the memory that the projection writes to, alone: the slab's.
  int64_t own_stride() const { return alone() ? partition_->num_tokens() : own_rows(); }
  void cut_tiles(int64_t tile_rows);
  int64_t heads_row_bytes() const { return shape_.num_kv_heads * shape_.row_bytes(); }
  int64_t tiles_bytes() const { return cp_->size() * max_rows_ * heads_row_bytes(); }  // of a side
  // Of a rank's rows of a tile.
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
  int64_t max_rows_ = 0;  // of any rank
  std::vector<Tile> tiles_;
  Copies last_tile_, other_tiles_;
  PrefixExchange cached_;
  Side k_{.name = "keys"}, v_{.name = "values"};
};

}  // namespace millrace::worker
