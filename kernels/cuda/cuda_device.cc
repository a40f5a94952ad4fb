// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/cuda_copy_lane.h"
#include "kernels/cuda/exported_memory.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/copy_rows_async.h"
#include "kernels/cuda/runtime/event_ring.h"
#include "kernels/cuda/runtime/locked_memory.h"
#include "kernels/cuda/runtime/memory_pool.h"
#include "kernels/cuda/runtime/pinned_memory.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/cuda/runtime/upload_ring.h"
#include "kernels/cuda/sm90/estimation/adaptive/adaptive.h"
#include "kernels/cuda/sm90/gemm/gemm.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels {
namespace {

// The number of rows from which cuBLASLt is at its fastest on the widths of 8B to 70B models. Twice
// as many gain less than 1 % and double the memory of activations.
constexpr int64_t kGemmRows = 8192;

// Compute capability 9.0: the kernels use instructions of sm_90a that no other has.
bool runs_our_kernels(int index) {
  int major = 0, minor = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) == cudaSuccess &&
         major == 9 && minor == 0;
}

// Buffers up to this size come from the pool: all of a request's thirty but those that hold the
// rows of a long prompt. Allocating and freeing each through the driver took 2 of the 30 ms of
// 1,024 tokens (docs/notebook/service.md).
constexpr int64_t kPooledBytes = int64_t{16} << 20;

// The UUID of the GPU, or of the instance if the GPU is partitioned: as nvidia-smi shows it,
// without dashes.
std::string uuid_of(const cudaDeviceProp& properties) {
  std::string text;
  for (const char byte : properties.uuid.bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties)
      : index_(index),
        name_(fmt::format("cuda:{} ({})", index, properties.name)),
        id_(uuid_of(properties)),
        num_sms_(properties.multiProcessorCount),
        l2_bytes_(properties.l2CacheSize),
        total_bytes_(static_cast<int64_t>(properties.totalGlobalMem)),
        pool_(index),
        exported_(index),
        uploads_(stream_.get()) {}

  DeviceInfo info() const override {
    return {.name = name_,
            .id = id_,
            .float32_compute = false,
            .float16_compute = true,
            .host_memory = false,
            .narrow_projections = true,
            .fuses_swiglu = true,
            .expert_row_step = cuda::kExpertRowStep,
            .float8_products = true,
            .head_dim_step = 64,
            .doubling_head_dims = true,
            .max_head_dim = 256,
            .rotary_dim_step = 16,
            .width_step = 8,
            .max_hidden_size = 16384,
            .max_tokens = int64_t{4} << 20,
            .gemm_rows = kGemmRows,
            .scratch_bytes = cuda::kPageListBytes,
            .scratch_key_bytes = cuda::AdaptiveMemory().key_bytes};
  }

  int64_t free_bytes() const override {
    use();
    size_t free = 0, total = 0;
    MR_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free) + pool_.idle_bytes();
  }

  Result<DeviceBuffer> allocate(int64_t bytes) override {
    MR_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
    if (bytes == 0) return DeviceBuffer(this, nullptr, 0);
    use();
    void* data = take(bytes);
    if (data == nullptr) {
      // The pool keeps freed memory, which may be what is missing here.
      MR_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
      pool_.release_idle();
      data = take(bytes);
    }
    if (data == nullptr) {
      return error(Errc::kExhausted, "{}: {} requested, {} of {} free", name_, format_bytes(bytes),
                   format_bytes(free_bytes()), format_bytes(total_bytes_));
    }
    return DeviceBuffer(this, data, bytes);
  }

  Result<HostBuffer> allocate_host(int64_t bytes) override {
    MR_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
    if (bytes == 0) return HostBuffer(this, nullptr, 0);
    use();
    void* data = pinned_.allocate(bytes);
    if (data == nullptr) {
      return error(Errc::kExhausted, "{}: cannot allocate {} of page-locked host memory", name_,
                   format_bytes(bytes));
    }
    return HostBuffer(this, data, bytes);
  }

  Result<SharedBuffer> allocate_shared(int64_t bytes) override {
    MR_CHECK(bytes > 0, "allocation of {} bytes", bytes);
    use();
    MR_ASSIGN_OR_RETURN(const auto block, exported_.allocate(bytes));
    return SharedBuffer{.memory = DeviceBuffer(this, block.data, bytes),
                        .descriptor = block.descriptor,
                        .mapped_bytes = block.num_bytes};
  }

  Result<HostLock> lock_host(std::span<const std::byte> memory) override {
    use();
    MR_RETURN_IF_ERROR(locked_.lock(memory));
    return HostLock(this, memory);
  }
  void copy(void* destination, const void* source, int64_t bytes) override {
    if (bytes == 0) return;
    use();
    MR_CUDA_CHECK(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes),
                                  cudaMemcpyDefault, stream_.get()));
  }
  void copy_rows(const CopyRowsParams& params) override {
    use();
    cuda::copy_rows_async(params, stream_.get());
  }
  void copy_pieces(const CopyPiecesParams& params) override { run(cuda::copy_pieces, params); }
  Result<void> synchronize(Deadline deadline) override {
    use();
    return stream_.synchronize(deadline);
  }

  std::unique_ptr<CopyLane> make_copy_lane() override {
    use();
    return std::make_unique<cuda::CudaCopyLane>(
        index_, stream_.get(), gathers_[num_lanes_++ % gathers_.size()].get(), locked_);
  }
  std::optional<GpuStream> gpu_stream() const override {
    return GpuStream{.gpu = index_, .handle = stream_.get()};
  }
  TimeMark mark() override {
    use();
    return marks_.record(stream_.get());
  }
  Result<void> wait_for(TimeMark mark, Deadline deadline) override {
    use();
    return marks_.wait_for(mark, deadline);
  }
  double elapsed_s(TimeMark from, TimeMark to) const override { return marks_.elapsed_s(from, to); }

  void embed(const EmbedParams& params) override { run(cuda::embed, params); }
  void rms_norm(const RmsNormParams& params) override { run(cuda::rms_norm, params); }
  void qkv_squares(const QkvSquaresParams& params) override { run(cuda::qkv_squares, params); }
  void rope_qkv(const RopeQkvParams& params) override { run(cuda::rope_qkv, params); }
  void add(const AddParams& params) override { run(cuda::add, params); }
  void gemm(const GemmParams& params) override {
    run([&](const GemmParams& p, cuda::Context& context) { gemm_.run(p, context); }, params);
  }
  void swiglu(const SwigluParams& params) override { run(cuda::swiglu, params); }
  void route(const RouteParams& params) override { run(cuda::route, params); }
  void experts(const ExpertsParams& params) override { run(cuda::experts, params); }

  void float8_quantize(const Float8QuantizeParams& params) override {
    run(cuda::float8_quantize, params);
  }
  void float8_rms_norm(const Float8RmsNormParams& params) override {
    run(cuda::float8_rms_norm, params);
  }
  void float8_gemm(const Float8GemmParams& params) override {
    run([&](const Float8GemmParams& p, cuda::Context& context) { gemm_.run(p, context); }, params);
  }
  void float8_swiglu(const Float8SwigluParams& params) override {
    run(cuda::float8_swiglu, params);
  }
  void float8_experts(const Float8ExpertsParams& params) override {
    run(cuda::float8_experts, params);
  }
  void float8_encode(const Float8EncodeParams& params) override {
    run(cuda::float8_encode, params);
  }
  void float8_decode(const Float8DecodeParams& params) override {
    run(cuda::float8_decode, params);
  }
  void float8_decode_pieces(const Float8DecodePiecesParams& params) override {
    run(cuda::float8_decode_pieces, params);
  }

  void attention(const AttentionParams& params) override { run(cuda::attention, params); }
  void decode_attention(const DecodeAttentionParams& params) override {
    run(cuda::decode_attention, params);
  }

  void build_closed_form(const ClosedFormParams& params) override {
    run(cuda::build_closed_form, params);
  }
  void last_row_sums(const LastRowSumsParams& params) override { run(cuda::last_row_sums, params); }
  void build_vertical_slash(const VerticalSlashParams& params) override {
    run(cuda::build_vertical_slash, params);
  }
  void build_block_sparse(const BlockSparseParams& params) override {
    run(cuda::build_block_sparse, params);
  }
  void build_adaptive(const AdaptiveParams& params) override { run(cuda::build_adaptive, params); }
  void page_scores(const PageScoresParams& params) override { run(cuda::page_scores, params); }
  void row_recall(const RowRecallParams& params) override { run(cuda::row_recall, params); }
  void page_digests(const PageDigestParams& params) override { run(cuda::page_digests, params); }

 private:
  // The current GPU is a setting of the calling thread; ranks may be threads of one process.
  void use() const { MR_CUDA_CHECK(cudaSetDevice(index_)); }

  template <typename Operation, typename Params>
  void run(Operation&& operation, const Params& params) {
    use();
    cuda::Scratch scratch(stream_.get(), pool_.get(), uploads_);
    cuda::Context context{
        .stream = stream_.get(), .num_sms = num_sms_, .l2_bytes = l2_bytes_, .scratch = scratch};
    operation(params, context);
  }

  // Null when there is none.
  void* take(int64_t bytes) {
    if (bytes <= kPooledBytes) return pool_.allocate(bytes);
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears it, or the next launch check would report it
      return nullptr;
    }
    cuda::check(status, "cudaMalloc");
    return data;
  }

  void free(void* data, int64_t bytes) noexcept override {
    cudaSetDevice(index_);
    if (exported_.free(data)) return;
    bytes <= kPooledBytes ? pool_.free(data) : static_cast<void>(cudaFree(data));
  }
  void free_host(void* data) noexcept override {
    cudaSetDevice(index_);
    pinned_.free(data);
  }

  void unlock_host(std::span<const std::byte> memory) noexcept override {
    cudaSetDevice(index_);
    locked_.unlock(memory);
  }

  int index_;
  std::string name_;
  std::string id_;
  int num_sms_;
  int64_t l2_bytes_;
  int64_t total_bytes_;
  cuda::MemoryPool pool_;
  cuda::ExportedMemory exported_;
  cuda::PinnedMemory pinned_;
  cuda::LockedMemory locked_;
  cuda::Stream stream_;
  // Three gathers run at once, each on one multiprocessor: four are no faster, and two are 5 %
  // slower. Without high priority they wait for a multiprocessor like other kernels, and the first
  // token behind a prefix takes a third longer (docs/notebook/prefix-on-gpus.md).
  std::array<cuda::Stream, 3> gathers_ = {cuda::Stream(cuda::Stream::Priority::kHigh),
                                          cuda::Stream(cuda::Stream::Priority::kHigh),
                                          cuda::Stream(cuda::Stream::Priority::kHigh)};
  size_t num_lanes_ = 0;
  cuda::UploadRing uploads_;
  cuda::EventRing marks_{kMarksKept};
  cuda::Gemm gemm_;
};

}  // namespace

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  int usable = 0;
  while (usable < count && runs_our_kernels(usable)) ++usable;
  return usable;
}

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    return error(Errc::kNotFound, "cuda:{}: {}", options.index, cudaGetErrorString(status));
  }
  if (options.index < 0 || options.index >= count) {
    return error(Errc::kNotFound, "cuda:{}: this process sees {} GPUs", options.index, count);
  }
  cudaDeviceProp properties{};
  MR_CUDA_CHECK(cudaGetDeviceProperties(&properties, options.index));
  if (!runs_our_kernels(options.index)) {
    return error(Errc::kUnsupported,
                 "cuda:{}: {} has compute capability {}.{}; the kernels need 9.0", options.index,
                 properties.name, properties.major, properties.minor);
  }
  MR_CUDA_CHECK(cudaSetDevice(options.index));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(options.index, properties));
}

}  // namespace millrace::kernels
