#include "kernels/ref/ref_device.h"

#include <cstdlib>
#include <cstring>

#include "common/available_memory.h"
#include "common/units.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels {
namespace {

class RefDevice final : public Device {
 public:
  DeviceInfo info() const override {
    return {.name = "reference", .num_threads = 1, .fast_bfloat16 = false};
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

  void embed(const EmbedParams& params) override { ref::embed(params); }
  void rms_norm(const RmsNormParams& params) override { ref::rms_norm(params); }
  void rope_qkv(const RopeQkvParams& params) override { ref::rope_qkv(params); }
  void add(const AddParams& params) override { ref::add(params); }
  void gemm(const GemmParams& params) override { ref::gemm(params); }
  void swiglu(const SwigluParams& params) override { ref::swiglu(params); }

  void attention(const AttentionParams& params) override { ref::attention(params); }
  void decode_attention(const DecodeAttentionParams& params) override {
    ref::decode_attention(params);
  }

  void build_closed_form(const ClosedFormParams& params) override { write_closed_forms(params); }
  void probe(const ProbeParams& params) override { ref::probe(params); }
  void build_vertical_slash(const VerticalSlashParams& params) override {
    ref::build_vertical_slash(params);
  }
  void build_block_sparse(const BlockSparseParams& params) override {
    ref::build_block_sparse(params);
  }
  void build_adaptive(const AdaptiveParams& params) override { ref::build_adaptive(params); }
  void page_scores(const PageScoresParams& params) override { ref::page_scores(params); }
  void page_digests(const PageDigestParams& params) override { ref::page_digests(params); }

 private:
  static Result<void*> allocate_bytes(int64_t bytes) {
    if (bytes == 0) return nullptr;
    void* data = std::aligned_alloc(64, round_up(bytes, 64));
    if (data == nullptr) {
      return error(Errc::kExhausted, "reference device: no memory for {}", format_bytes(bytes));
    }
    return data;
  }

  void free(void* data, int64_t) noexcept override { std::free(data); }
  void free_host(void* data) noexcept override { std::free(data); }
};

}  // namespace

std::unique_ptr<Device> make_ref_device() {
  return std::make_unique<RefDevice>();
}

}  // namespace millrace::kernels
