// The live layer's K and V: each rank's own rows as the projection writes them, and the slab of all
// tokens that attention reads, put together by kv head over the context-parallel ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/api/host_window.h"
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
                                   comm::Communicator& cp, int32_t num_kv_heads, int32_t head_dim,
                                   DType dtype);

  // Where the projection writes this rank's rows.
  void* local_k() const { return local_k_.data(); }
  void* local_v() const { return local_v_.data(); }
  LocalKv local() const;

  // Collective: fills the slab from the local rows of all ranks. With one rank the slab is the
  // local rows.
  Result<void> gather(Deadline deadline);
  kernels::KvSlab slab() const;

 private:
  KvExchange(kernels::Device& device, const Partition& partition, comm::Communicator& cp)
      : device_(&device), partition_(&partition), cp_(&cp) {}

  Result<void> gather_head(const void* local, void* slab, Deadline deadline);

  kernels::Device* device_;
  const Partition* partition_;
  comm::Communicator* cp_;
  int32_t num_kv_heads_ = 0;
  int32_t head_dim_ = 0;
  DType dtype_ = DType::kFloat32;
  kernels::DeviceBuffer local_k_;
  kernels::DeviceBuffer local_v_;
  kernels::DeviceBuffer slab_k_;  // empty with one rank
  kernels::DeviceBuffer slab_v_;
  kernels::DeviceBuffer by_rank_;  // one head as it arrives: rank 0's rows, rank 1's, ...
  std::optional<kernels::HostWindow> sent_, received_;  // of one head; none with one rank
};

}  // namespace millrace::worker
