// A CPU device that behaves like one with memory of its own: the host faults when it touches device
// memory, sees what was copied to it only after synchronize(), and pays for taking back host memory
// too early. What runs on it makes no assumption that a GPU would break.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/api/device.h"

namespace millrace::test {

class FarDevice final : public kernels::Device {
 public:
  // `device`: one whose memory is the host's; it does the work.
  explicit FarDevice(std::unique_ptr<kernels::Device> device) : device_(std::move(device)) {}
  ~FarDevice() override;

  // Device memory in use, and the most that ever was since reset_peak().
  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = allocated_bytes_; }

  kernels::DeviceInfo info() const override;
  int64_t free_bytes() const override { return device_->free_bytes(); }
  Result<kernels::DeviceBuffer> allocate(int64_t bytes) override;
  Result<kernels::HostBuffer> allocate_host(int64_t bytes) override;
  void copy(void* destination, const void* source, int64_t bytes) override;
  void copy_rows(const kernels::CopyRowsParams& params) override;
  void copy_pieces(const kernels::CopyPiecesParams& params) override {
    run(&Device::copy_pieces, params);
  }
  Result<void> synchronize(Deadline deadline) override;
  std::unique_ptr<kernels::CopyLane> make_copy_lane() override;
  kernels::TimeMark mark() override { return device_->mark(); }
  double elapsed_s(kernels::TimeMark from, kernels::TimeMark to) const override {
    return device_->elapsed_s(from, to);
  }

  void embed(const kernels::EmbedParams& params) override { run(&Device::embed, params); }
  void rms_norm(const kernels::RmsNormParams& params) override { run(&Device::rms_norm, params); }
  void rope_qkv(const kernels::RopeQkvParams& params) override { run(&Device::rope_qkv, params); }
  void silu_mul(const kernels::SiluMulParams& params) override { run(&Device::silu_mul, params); }
  void add(const kernels::AddParams& params) override { run(&Device::add, params); }
  void gemm(const kernels::GemmParams& params) override { run(&Device::gemm, params); }
  void attention(const kernels::AttentionParams& params) override {
    run(&Device::attention, params);
  }
  void decode_attention(const kernels::DecodeAttentionParams& params) override {
    run(&Device::decode_attention, params);
  }
  void build_closed_form(const kernels::ClosedFormParams& params) override {
    run(&Device::build_closed_form, params);
  }
  void probe(const kernels::ProbeParams& params) override { run(&Device::probe, params); }
  void build_vertical_slash(const kernels::VerticalSlashParams& params) override {
    run(&Device::build_vertical_slash, params);
  }
  void build_block_sparse(const kernels::BlockSparseParams& params) override {
    run(&Device::build_block_sparse, params);
  }
  void build_adaptive(const kernels::AdaptiveParams& params) override {
    run(&Device::build_adaptive, params);
  }
  void page_scores(const kernels::PageScoresParams& params) override {
    run(&Device::page_scores, params);
  }
  void page_digests(const kernels::PageDigestParams& params) override {
    run(&Device::page_digests, params);
  }

 private:
  // A copy to host memory that is done but for its arrival.
  struct Arrival {
    kernels::CopyRowsParams rows;  // source: in `data`
    std::vector<std::byte> data;
  };

  template <typename Params>
  void run(void (kernels::Device::*operation)(const Params&), const Params& params) {
    const std::lock_guard lock(mutex_);
    deliver_to_device();
    set_access(true);
    (device_.get()->*operation)(params);
    set_access(false);
  }
  bool is_device_memory(const void* pointer) const;
  void set_access(bool allowed) const;
  void deliver_to_device();
  void free(void* data, int64_t bytes) noexcept override;
  void free_host(void* data) noexcept override;

  class Lane;

  std::unique_ptr<kernels::Device> device_;
  mutable std::mutex mutex_;                        // what a lane may do beside the device's thread
  std::unordered_map<std::byte*, int64_t> memory_;  // start -> mapped bytes
  int64_t allocated_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::vector<kernels::CopyRowsParams> on_the_way_;  // to device memory, in order
  std::vector<Arrival> arrivals_;                    // to host memory, in order
};

}  // namespace millrace::test
