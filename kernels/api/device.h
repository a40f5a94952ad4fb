// SPDX-License-Identifier: Apache-2.0
// Device: the interface that the model's forward pass is written against. A device has memory, an
// order of execution and the operations. kernels/cpu and kernels/cuda implement it; kernels/ref is the
// naive double-precision implementation that tests compare with.
//
// Order: operations take effect in the order of the calls, as in one stream. On the CPU a call
// returns when its work is done; on a GPU it may return earlier, and synchronize() waits. Threads: a
// Device is used by one thread at a time. Errors: a failed allocation is an expected outcome and returns a
// Result; an operation given shapes that do not fit is a bug (MR_CHECK); a GPU that fails throws
// CudaError, which ends the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "kernels/api/attention.h"
#include "kernels/api/copy_lane.h"
#include "kernels/api/copy_pieces.h"
#include "kernels/api/copy_rows.h"
#include "kernels/api/digest.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/estimation.h"
#include "kernels/api/experts.h"
#include "kernels/api/float8.h"
#include "kernels/api/gemm.h"
#include "kernels/api/swiglu.h"
#include "kernels/index/closed_form.h"

struct CUstream_st;  // CUDA's: what a cudaStream_t points to

namespace millrace::kernels {

// What sparse attention by columns, bands or block lists costs on a device, relative to dense attention.
struct SparseCost {
  // Speed per computed (query, key) pair, as a share of the dense kernel's. H100: 428 of 593 TFLOP/s.
  double speed = 0.7;
  // Building the lists takes a fixed time, as long as dense attention over this many tokens. H100:
  // 0.1 ms for a layer of 32 heads, nearly all of it launches.
  double launch_tokens = 2600;
  // It also takes as long as dense attention of this many rows.
  double rows = 0;
};

struct DeviceInfo {
  std::string name;  // "cpu (2 threads, avx512_bf16)"
  // Identifies the device to all processes of the machine, whatever number each process sees it
  // under. Empty on a CPU: a machine has one.
  std::string id;
  int num_threads = 0;  // CPU only
  // Dtypes that weights, K and V may have besides bfloat16.
  bool float32_compute = true;
  bool float16_compute = false;
  bool host_memory = true;  // the host may read and write device memory
  // If the compute dtype is bfloat16, products that an element-wise operation reads are bfloat16 too:
  // half the bytes for a memory-bound operation.
  bool narrow_projections = false;
  bool fuses_swiglu = false;      // needs no room for the products
  bool all_activations = false;   // of MLPs; otherwise SiLU only
  bool attention_sinks = false;   // AttentionParams::sinks
  bool expert_biases = false;     // RouteParams::bias, ExpertsParams' two and kClamped
  bool corrected_routes = false;  // RouteParams::correction and factor, kChosenSigmoid
  bool interleaved_rotation = false;
  bool computes_experts = false;  // route() and experts()
  // experts() has the rows of all experts in its scratch memory at once; those of each expert begin at a
  // multiple of this. 0: it holds one expert's rows at a time. See expert_scratch_rows.
  int32_t expert_row_step = 0;
  bool float8_products = false;    // kernels/api/float8.h
  bool float8_sum_biases = false;  // Float8GemmParams::bias into float32
  // Widths of products of 8-bit floats must be multiples of this.
  int32_t float8_width_step = kFloat8WidthStep;
  // Limits of the operations: head dimensions, widths of hidden states and of a rank's part of an
  // MLP or an expert, tokens of a prompt under any index.
  int32_t head_dim_step = 16;
  bool doubling_head_dims = false;  // only power-of-two multiples of head_dim_step
  int32_t max_head_dim = 256;
  int32_t rotary_dim_step = 2;  // of the number of rotated elements of a head
  int32_t width_step = 1;
  int32_t max_hidden_size = 1 << 20;
  int64_t max_tokens = int64_t{1} << 30;
  int64_t gemm_rows = 1024;  // best number of rows for one product
  SparseCost sparse_cost;
  // The most device memory that an operation allocates temporarily for prompts of which one kv head's keys, in int8,
  // have at most scratch_key_bytes. What they have beyond comes on top, and a twentieth of that for their pages.
  int64_t scratch_bytes = 0;
  int64_t scratch_key_bytes = INT64_MAX;

  bool computes_in(DType dtype) const;
  // The smallest supported head dimension that is at least `head_dim`, or else the largest supported.
  int32_t head_dim_from(int32_t head_dim) const;
  // The dtype of products that an element-wise operation reads. Never float16, whose largest value is
  // 65,504: some models have larger gates and biased keys, although their activations and rotated keys fit.
  DType projection_dtype(DType compute_dtype) const;
};

// A point in a device's order of execution; see Device::mark.
enum class TimeMark : int64_t {};
// Marks that stay valid. A prompt that is set aside still needs its own after another has run, which takes a
// dozen in each layer.
inline constexpr int64_t kMarksKept = 4096;

// The stream of a GPU's operations, for a library that orders its own work relative to them.
struct GpuStream {
  int gpu = 0;                    // among those this process sees
  CUstream_st* handle = nullptr;  // a cudaStream_t
};

class Device;

// Owns device memory, uninitialised. The device that allocated it must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, void* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Device memory that other processes of the host can map through a file descriptor, which the buffer owns. The
// memory stays allocated as long as any process has it mapped.
struct SharedBuffer {
  DeviceBuffer memory;
  int descriptor = -1;
  int64_t mapped_bytes = 0;  // what the descriptor names, from memory.data() on
};

// Owns host memory that the device copies from and to at full speed (page-locked on a GPU). Otherwise like
// DeviceBuffer.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(Device* device, void* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Keeps host memory that somebody else owns page-locked, so that the device's copy lanes can read it. Must be
// destroyed before the memory and the device, when no lane gathers from it any more.
class HostLock {
 public:
  HostLock() = default;
  HostLock(Device* device, std::span<const std::byte> memory) : device_(device), memory_(memory) {}
  HostLock(HostLock&& other) noexcept;
  HostLock& operator=(HostLock&& other) noexcept;
  ~HostLock();

 private:
  Device* device_ = nullptr;
  std::span<const std::byte> memory_;
};

// Marks of a device whose calls return when their work is done.
TimeMark host_time_mark();
double host_elapsed_s(TimeMark from, TimeMark to);

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceInfo info() const = 0;
  // What could be allocated now, in all.
  virtual int64_t free_bytes() const = 0;

  // 64-byte aligned. kExhausted with the numbers when it does not fit.
  virtual Result<DeviceBuffer> allocate(int64_t bytes) = 0;
  virtual Result<HostBuffer> allocate_host(int64_t bytes) = 0;
  // One byte at least. kExhausted; kUnsupported: the device, or where this process runs, has none.
  virtual Result<SharedBuffer> allocate_shared(int64_t bytes);
  // Page-locks memory for the device to read, also what this process may only read itself. Whole pages of the system,
  // on any thread, whatever others do with the device. kUnsupported: the device's memory is the host's, or the
  // host's is not seen under the same addresses; kExhausted: the system locks no more. A single copy() or
  // copy_rows() must stay within what was locked at once.
  virtual Result<HostLock> lock_host(std::span<const std::byte> memory);
  // Copies between host and device memory in either direction, in stream order. Host memory stays
  // as it is until synchronize(), and has what was copied to it after.
  virtual void copy(void* destination, const void* source, int64_t bytes) = 0;
  virtual void copy_rows(const CopyRowsParams& params) = 0;
  // Device memory only.
  virtual void copy_pieces(const CopyPiecesParams& params) = 0;
  virtual Result<void> synchronize(Deadline deadline) = 0;

  virtual std::unique_ptr<CopyLane> make_copy_lane() = 0;
  // None: calls return when their work is done.
  virtual std::optional<GpuStream> gpu_stream() const { return std::nullopt; }

  // The moment at which all operations called so far are done; greater than the marks before.
  // elapsed_s is the time between two of the last kMarksKept, known once the later one is passed.
  virtual TimeMark mark() = 0;
  // Until `mark`, one of the last kMarksKept, is passed: host memory has what was copied to it
  // before. What was called after may still run.
  virtual Result<void> wait_for(TimeMark mark, Deadline deadline) = 0;
  virtual double elapsed_s(TimeMark from, TimeMark to) const = 0;

  virtual void embed(const EmbedParams& params) = 0;
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void qkv_squares(const QkvSquaresParams& params) = 0;
  virtual void rope_qkv(const RopeQkvParams& params) = 0;
  virtual void add(const AddParams& params) = 0;
  virtual void gemm(const GemmParams& params) = 0;
  virtual void swiglu(const SwigluParams& params) = 0;
  // Where info().computes_experts.
  virtual void route(const RouteParams& params);
  virtual void experts(const ExpertsParams& params);
  // Where info().float8_products.
  virtual void float8_quantize(const Float8QuantizeParams& params);
  virtual void float8_rms_norm(const Float8RmsNormParams& params);
  virtual void float8_gemm(const Float8GemmParams& params);
  virtual void float8_swiglu(const Float8SwigluParams& params);
  // Where info().computes_experts, too.
  virtual void float8_experts(const Float8ExpertsParams& params);
  virtual void float8_encode(const Float8EncodeParams& params);
  virtual void float8_decode(const Float8DecodeParams& params);
  // A float8_decode() for each piece, unless a device overrides it.
  virtual void float8_decode_pieces(const Float8DecodePiecesParams& params);

  virtual void attention(const AttentionParams& params) = 0;
  virtual void decode_attention(const DecodeAttentionParams& params) = 0;

  virtual void build_closed_form(const ClosedFormParams& params) = 0;
  virtual void probe(const ProbeParams& params) = 0;
  virtual void build_vertical_slash(const VerticalSlashParams& params) = 0;
  virtual void build_block_sparse(const BlockSparseParams& params) = 0;
  virtual void build_adaptive(const AdaptiveParams& params) = 0;
  virtual void page_scores(const PageScoresParams& params) = 0;
  virtual void row_recall(const RowRecallParams& params) = 0;
  virtual void page_digests(const PageDigestParams& params) = 0;

 private:
  friend class DeviceBuffer;
  friend class HostBuffer;
  friend class HostLock;
  virtual void free(void* data, int64_t bytes) noexcept = 0;
  virtual void free_host(void* data) noexcept = 0;
  virtual void unlock_host(std::span<const std::byte> /*memory*/) noexcept {}
};

}  // namespace millrace::kernels
