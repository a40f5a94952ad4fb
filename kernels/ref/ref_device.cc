// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/ref_device.h"

#include "kernels/api/host_memory_device.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels {
namespace {

class RefDevice final : public HostMemoryDevice {
 public:
  DeviceInfo info() const override {
    return {.name = "reference", .num_threads = 1, .float8_products = true, .float8_width_step = 1};
  }

  void embed(const EmbedParams& params) override { ref::embed(params); }
  void rms_norm(const RmsNormParams& params) override { ref::rms_norm(params); }
  void qkv_squares(const QkvSquaresParams& params) override { ref::qkv_squares(params); }
  void rope_qkv(const RopeQkvParams& params) override { ref::rope_qkv(params); }
  void add(const AddParams& params) override { ref::add(params); }
  void gemm(const GemmParams& params) override { ref::gemm(params); }
  void swiglu(const SwigluParams& params) override { ref::swiglu(params); }
  void route(const RouteParams& params) override { ref::route(params); }
  void experts(const ExpertsParams& params) override { ref::experts(params); }
  void float8_quantize(const Float8QuantizeParams& params) override {
    ref::float8_quantize(params);
  }
  void float8_rms_norm(const Float8RmsNormParams& params) override { ref::float8_rms_norm(params); }
  void float8_gemm(const Float8GemmParams& params) override { ref::float8_gemm(params); }
  void float8_swiglu(const Float8SwigluParams& params) override { ref::float8_swiglu(params); }
  void float8_experts(const Float8ExpertsParams& params) override { ref::float8_experts(params); }
  void float8_encode(const Float8EncodeParams& params) override { ref::float8_encode(params); }
  void float8_decode(const Float8DecodeParams& params) override { ref::float8_decode(params); }

  void attention(const AttentionParams& params) override { ref::attention(params); }
  void decode_attention(const DecodeAttentionParams& params) override {
    ref::decode_attention(params);
  }

  void last_row_sums(const LastRowSumsParams& params) override { ref::last_row_sums(params); }
  void build_vertical_slash(const VerticalSlashParams& params) override {
    ref::build_vertical_slash(params);
  }
  void build_block_sparse(const BlockSparseParams& params) override {
    ref::build_block_sparse(params);
  }
  void build_adaptive(const AdaptiveParams& params) override { ref::build_adaptive(params); }
  void page_scores(const PageScoresParams& params) override { ref::page_scores(params); }
  void row_recall(const RowRecallParams& params) override { ref::row_recall(params); }
  void page_digests(const PageDigestParams& params) override { ref::page_digests(params); }
};

}  // namespace

std::unique_ptr<Device> make_ref_device() {
  return std::make_unique<RefDevice>();
}

}  // namespace millrace::kernels
