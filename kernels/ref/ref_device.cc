#include "kernels/ref/ref_device.h"

#include <cstdlib>
#include <cstring>

#include "common/units.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels {
namespace {

class RefDevice final : public Device {
 public:
  DeviceInfo info() const override {
    return {.name = "reference", .num_threads = 1, .fast_bfloat16 = false};
  }

  Result<DeviceBuffer> allocate(int64_t bytes) override {
    if (bytes == 0) return DeviceBuffer(this, nullptr, 0);
    void* data = std::aligned_alloc(64, round_up(bytes, 64));
    if (data == nullptr) {
      return error(Errc::kExhausted, "reference device: no memory for {}", format_bytes(bytes));
    }
    return DeviceBuffer(this, data, bytes);
  }
  void copy(void* destination, const void* source, int64_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, static_cast<size_t>(bytes));
  }
  Result<void> synchronize(Deadline) override { return {}; }

  void embed(const EmbedParams& params) override { ref::embed(params); }
  void rms_norm(const RmsNormParams& params) override { ref::rms_norm(params); }
  void rope_qkv(const RopeQkvParams& params) override { ref::rope_qkv(params); }
  void silu_mul(const SiluMulParams& params) override { ref::silu_mul(params); }
  void add(const AddParams& params) override { ref::add(params); }
  void gemm(const GemmParams& params) override { ref::gemm(params); }

  void attention(const AttentionParams& params) override { ref::attention(params); }
  void decode_attention(const DecodeAttentionParams& params) override {
    ref::decode_attention(params);
  }

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
  void free(void* data, int64_t) noexcept override { std::free(data); }
};

}  // namespace

std::unique_ptr<Device> make_ref_device() {
  return std::make_unique<RefDevice>();
}

}  // namespace millrace::kernels
