#include "kernels/cpu/cpu_device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "common/available_memory.h"
#include "common/check.h"
#include "common/units.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/operations.h"

namespace millrace::kernels {
namespace {

constexpr int64_t kAlignmentBytes = 64;  // a cache line, and the widest vector

int64_t physical_memory_bytes() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const cpu::Context& context) : context_(context), gemm_(context) {}

  DeviceInfo info() const override {
    return {.name = fmt::format("cpu ({} thread{}, {})", context_.num_threads,
                                context_.num_threads == 1 ? "" : "s",
                                cpu::simd_level_name(context_.simd)),
            .num_threads = context_.num_threads,
            .fast_bfloat16 = context_.simd >= cpu::SimdLevel::kAvx512Bf16};
  }

  int64_t free_bytes() const override { return available_memory_bytes(); }

  Result<DeviceBuffer> allocate(int64_t bytes) override {
    MR_ASSIGN_OR_RETURN(void* data, allocate_bytes(bytes));
    return DeviceBuffer(this, data, bytes);
  }
  Result<HostBuffer> allocate_host(int64_t bytes) override {
    MR_ASSIGN_OR_RETURN(void* data, allocate_bytes(bytes));
    return HostBuffer(this, data, bytes);
  }

  void copy(void* destination, const void* source, int64_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, static_cast<size_t>(bytes));
  }
  void copy_rows(const CopyRowsParams& params) override { copy_host_rows(params); }
  void copy_pieces(const CopyPiecesParams& params) override { copy_host_pieces(params); }
  Result<void> synchronize(Deadline) override { return {}; }
  std::unique_ptr<CopyLane> make_copy_lane() override { return std::make_unique<HostCopyLane>(); }
  TimeMark mark() override { return host_time_mark(); }
  Result<void> wait_for(TimeMark, Deadline) override { return {}; }
  double elapsed_s(TimeMark from, TimeMark to) const override { return host_elapsed_s(from, to); }

  void embed(const EmbedParams& params) override { cpu::embed(params, context_); }
  void rms_norm(const RmsNormParams& params) override { cpu::rms_norm(params, context_); }
  void rope_qkv(const RopeQkvParams& params) override { cpu::rope_qkv(params, context_); }
  void add(const AddParams& params) override { cpu::add(params, context_); }
  void gemm(const GemmParams& params) override { gemm_.run(params); }
  void swiglu(const SwigluParams& params) override {
    gemm_.run(
        {.a = params.a,
         .b = params.gate_up,
         .c = dense_matrix(params.products, DType::kFloat32, params.a.rows, params.gate_up.rows)});
    cpu::silu_mul({.gate_up = params.products, .out = params.out}, context_);
  }

  void attention(const AttentionParams& params) override { cpu::attention(params, context_); }
  void decode_attention(const DecodeAttentionParams& params) override {
    cpu::decode_attention(params, context_);
  }

  void build_closed_form(const ClosedFormParams& params) override { write_closed_forms(params); }
  void probe(const ProbeParams& params) override { cpu::probe(params, context_); }
  void build_vertical_slash(const VerticalSlashParams& params) override {
    cpu::build_vertical_slash(params, context_);
  }
  void build_block_sparse(const BlockSparseParams& params) override {
    cpu::build_block_sparse(params, context_);
  }
  void build_adaptive(const AdaptiveParams& params) override {
    cpu::build_adaptive(params, context_);
  }
  void page_scores(const PageScoresParams& params) override { cpu::page_scores(params, context_); }
  void page_digests(const PageDigestParams& params) override {
    cpu::page_digests(params, context_);
  }

 private:
  static Result<void*> allocate_bytes(int64_t bytes) {
    MR_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
    // The kernel overcommits: what is larger than the machine would only fail when touched, and
    // then by a signal.
    const int64_t limit = physical_memory_bytes();
    if (bytes > limit) {
      return error(Errc::kExhausted, "cpu device: {} asked for, the machine has {}",
                   format_bytes(bytes), format_bytes(limit));
    }
    if (bytes == 0) return nullptr;
    void* data = std::aligned_alloc(kAlignmentBytes, round_up(bytes, kAlignmentBytes));
    if (data == nullptr) {
      return error(Errc::kExhausted, "cpu device: no memory for {}", format_bytes(bytes));
    }
    return data;
  }

  void free(void* data, int64_t) noexcept override { std::free(data); }
  void free_host(void* data) noexcept override { std::free(data); }

  cpu::Context context_;
  cpu::Gemm gemm_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  MR_CHECK(options.num_threads >= 1, "cpu device with {} threads", options.num_threads);
  return std::make_unique<CpuDevice>(
      cpu::Context{.num_threads = options.num_threads, .simd = cpu::detect_simd()});
}

}  // namespace millrace::kernels
