// The live layer's K and V: each rank's own rows as the projection writes them, and the slab of all
// tokens that attention reads, gathered over the context-parallel ranks.
//
// Every rank sends as many rows as the rank with most has; what goes beyond a rank's own rows is
// not looked at. Gathered K and V lie by head and rank, and are put in the order of positions by
// one pass of the device's: at 1M tokens of 8 heads of 128 that moves 8.6 GB a layer through memory
// where the links carry 3.8, and takes a third of their time.
#pragma once

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

class KvExchange {
 public:
  static Result<KvExchange> create(kernels::Device& device, const Partition& partition,
                                   comm::DeviceCommunicator& cp, int32_t num_kv_heads,
                                   int32_t head_dim, DType dtype);

  // Where the projection writes this rank's rows.
  void* local_k() const { return k_.local.data(); }
  void* local_v() const { return v_.local.data(); }
  LocalKv local() const;

  // Collective: sends the local rows on their way, K first.
  Result<void> begin(Deadline deadline);
  // Operations the device is given from here on see the slab's K, or V.
  void finish_k() { finish(k_); }
  void finish_v() { finish(v_); }
  // With one rank the slab is the local rows.
  kernels::KvSlab slab() const;

 private:
  // K or V.
  struct Side {
    kernels::DeviceBuffer local;     // [kv heads, own rows, head_dim], and room to send from
    kernels::DeviceBuffer gathered;  // [kv heads, ranks, most rows, head_dim]; none with one rank
    kernels::DeviceBuffer slab;      // [kv heads, tokens, head_dim]; none with one rank
    comm::CollectiveMark arrived = 0;
  };

  KvExchange(kernels::Device& device, const Partition& partition, comm::DeviceCommunicator& cp)
      : device_(&device), partition_(&partition), cp_(&cp) {}

  Result<void> allocate(Side& side);
  Result<void> send(Side& side, Deadline deadline);
  void finish(const Side& side);
  int64_t own_rows() const { return partition_->num_tokens(cp_->rank()); }

  kernels::Device* device_;
  const Partition* partition_;
  comm::DeviceCommunicator* cp_;
  int32_t num_kv_heads_ = 0;
  int32_t head_dim_ = 0;
  DType dtype_ = DType::kFloat32;
  int64_t most_rows_ = 0;                   // of any rank
  std::vector<kernels::CopyPiece> pieces_;  // of one head, from gathered to slab
  Side k_, v_;
};

}  // namespace millrace::worker
