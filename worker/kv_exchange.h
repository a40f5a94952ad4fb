// The live layer's K and V: each rank's own rows as the projection writes them, and the slab of all
// tokens that attention reads, gathered over the context-parallel ranks.
//
// Rows are sent by row tile, as soon as they are projected, so that the ranks' links are busy while
// their devices compute the next tile. Two sets of own rows take turns: the projection of layer l +
// 1 begins before layer l has left.
//
// All ranks send equal tiles: what goes beyond a rank's own rows is not looked at. Tiles arrive by
// head and rank, and are put in the order of positions by one pass of the device's: at 1M tokens of
// 8 heads of 128 that moves 8.6 GB a layer through memory where each link carries 3.8, in a quarter
// of the time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "worker/partition.h"

namespace millrace::worker {

// One layer of this rank's tokens, head-major.
struct LocalKv {
  const void* k = nullptr;  // [num_kv_heads, num_rows, head_dim], rows in the rank's order
  const void* v = nullptr;
  DType dtype = DType::kFloat32;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t num_rows = 0;
};

struct KvShape {
  int32_t num_kv_heads = 0;  // of this rank
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;

  int64_t row_bytes() const { return head_dim * dtype_bytes(dtype); }
};

class KvExchange {
 public:
  // `tile_rows`: of a row tile, the same on all ranks.
  static Result<KvExchange> create(kernels::Device& device, const Partition& partition,
                                   comm::DeviceCommunicator& cp, const KvShape& shape,
                                   int64_t tile_rows);

  // Row tiles of the rank with most rows: as many as every rank sends. A rank with fewer rows has
  // nothing to project in the last one.
  int64_t num_tiles() const { return std::ssize(tiles_); }

  // Where the projection of the next layer writes this rank's rows.
  void* next_k() const { return k_.own[next_].data(); }
  void* next_v() const { return v_.own[next_].data(); }
  // Collective: the rows of a tile that the device was told to write go on their way.
  Result<void> send_k(int64_t tile, Deadline deadline) { return send(k_, tile, deadline); }
  Result<void> send_v(int64_t tile, Deadline deadline) { return send(v_, tile, deadline); }

  // The next layer becomes the live one. All of its tiles are sent.
  void advance();
  LocalKv local() const;
  // Operations the device is given from here on see the slab's K, or V. The layer before has left
  // it.
  void finish_k() { finish(k_); }
  void finish_v() { finish(v_); }
  // With one rank the slab is the own rows.
  kernels::KvSlab slab() const;

  // Operations the device is given from here on come after all that was sent.
  void settle();

 private:
  // K or V.
  struct Side {
    std::array<kernels::DeviceBuffer, 2> own;  // [kv heads, own rows, head_dim], room to send from
    kernels::DeviceBuffer gathered;    // a tile after the other, each [kv heads, ranks, rows,
                                       // head_dim]; none with one rank
    kernels::DeviceBuffer slab;        // [kv heads, tokens, head_dim]; none with one rank
    comm::CollectiveMark arrived = 0;  // the last tile
  };
  struct Tile {
    int64_t first_row = 0;
    int64_t num_rows = 0;                    // sent by every rank
    std::vector<kernels::CopyPiece> pieces;  // of one head, from its place in gathered to the slab
  };

  KvExchange(kernels::Device& device, const Partition& partition, comm::DeviceCommunicator& cp,
             const KvShape& shape)
      : device_(&device), partition_(&partition), cp_(&cp), shape_(shape) {}

  bool alone() const { return cp_->size() == 1; }
  int64_t own_rows() const { return partition_->num_tokens(cp_->rank()); }
  void cut_tiles(int64_t tile_rows);
  Result<void> allocate(Side& side);
  Result<void> send(Side& side, int64_t tile, Deadline deadline);
  void finish(const Side& side);

  kernels::Device* device_;
  const Partition* partition_;
  comm::DeviceCommunicator* cp_;
  KvShape shape_;
  int64_t most_rows_ = 0;  // of any rank
  std::vector<Tile> tiles_;
  size_t next_ = 0;  // of own: what the projection writes
  size_t live_ = 0;
  Side k_, v_;
};

}  // namespace millrace::worker
