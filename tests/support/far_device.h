// A CPU device that behaves like one with memory of its own that is always behind: an operation is
// done when it is waited for, by who has time, and not before. The host faults when it touches
// device memory, sees what was copied to it only once it has waited, and pays for taking back host
// memory too early. What runs on it makes no assumption that a GPU would break.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/address_ranges.h"
#include "kernels/api/device.h"
#include "tests/support/kept_params.h"

namespace millrace::test {

class FarDevice final : public kernels::Device {
 public:
  // `device`: one whose memory is the host's; it does the work.
  explicit FarDevice(std::unique_ptr<kernels::Device> device);
  ~FarDevice() override;

  // Device memory in use, and the most that ever was since reset_peak().
  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = allocated_bytes_; }

  // As a GPU without that much in one piece: kExhausted.
  void refuse_larger_than(int64_t bytes) { largest_bytes_ = bytes; }

  // Something done in the order of the operations, a collective for instance. What it has this
  // device do is done at once.
  void enqueue(std::function<void()> operation);
  // As a GPU that fails: whoever waits for the operation after the next `num_operations` gets a
  // std::runtime_error, "failure 1" the first time.
  void break_after(int64_t num_operations);
  // As a GPU that waits for a peer that is gone: who waits for it from now on is out of time.
  void hang() { hangs_ = true; }
  // As a GPU that hangs: from now on copies of lanes do not come to an end, and who waits for them
  // is out of time.
  void hold_lanes();
  // Whether memory can be locked: kExhausted.
  void refuse_locks(bool refuse) { refuses_locks_ = refuse; }
  // Pages that lanes have gathered.
  int64_t num_gathered() const { return num_gathered_; }
  // They end after all, in their order.
  void release_lanes();

  kernels::DeviceInfo info() const override;
  int64_t free_bytes() const override { return device_->free_bytes(); }
  Result<kernels::DeviceBuffer> allocate(int64_t bytes) override;
  Result<kernels::HostBuffer> allocate_host(int64_t bytes) override;
  Result<kernels::HostLock> lock_host(std::span<const std::byte> memory) override;
  void copy(void* destination, const void* source, int64_t bytes) override;
  void copy_rows(const kernels::CopyRowsParams& params) override;
  void copy_pieces(const kernels::CopyPiecesParams& params) override {
    run(&Device::copy_pieces, params);
  }
  Result<void> synchronize(Deadline deadline) override;
  std::unique_ptr<kernels::CopyLane> make_copy_lane() override;
  kernels::TimeMark mark() override;
  Result<void> wait_for(kernels::TimeMark mark, Deadline deadline) override;
  double elapsed_s(kernels::TimeMark from, kernels::TimeMark to) const override;

  void embed(const kernels::EmbedParams& params) override { run(&Device::embed, params); }
  void rms_norm(const kernels::RmsNormParams& params) override { run(&Device::rms_norm, params); }
  void qkv_squares(const kernels::QkvSquaresParams& params) override {
    run(&Device::qkv_squares, params);
  }
  void rope_qkv(const kernels::RopeQkvParams& params) override { run(&Device::rope_qkv, params); }
  void add(const kernels::AddParams& params) override { run(&Device::add, params); }
  void gemm(const kernels::GemmParams& params) override { run(&Device::gemm, params); }
  void swiglu(const kernels::SwigluParams& params) override { run(&Device::swiglu, params); }
  void route(const kernels::RouteParams& params) override { run(&Device::route, params); }
  void experts(const kernels::ExpertsParams& params) override { run(&Device::experts, params); }
  void float8_encode(const kernels::Float8EncodeParams& params) override {
    run(&Device::float8_encode, params);
  }
  void float8_decode(const kernels::Float8DecodeParams& params) override {
    run(&Device::float8_decode, params);
  }
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
  void row_recall(const kernels::RowRecallParams& params) override {
    run(&Device::row_recall, params);
  }
  void page_digests(const kernels::PageDigestParams& params) override {
    run(&Device::page_digests, params);
  }

 private:
  class Access;
  class Lane;
  class Turn;
  struct Operation {
    std::function<void()> run;
    bool is_own = false;  // touches device memory, or a mark
  };

  template <typename Params>
  void run(void (kernels::Device::*operation)(const Params&), const Params& params) {
    enqueue_own([this, operation, kept = KeptParams<Params>(params)] {
      (device_.get()->*operation)(*kept);
    });
  }
  // Operations called so far, done or not.
  int64_t num_called() const;
  // Whether the caller is an operation.
  bool inside() const { return worker_ == std::this_thread::get_id(); }
  // Of the first `count` operations, the next to be done, or none.
  const Operation* next_operation(int64_t count);
  // Does the first `count` operations, as far as they are not done.
  void catch_up(int64_t count);
  void enqueue_own(std::function<void()> operation);
  void set_accessible(bool accessible);
  void free(void* data, int64_t bytes) noexcept override;
  void free_host(void* data) noexcept override;
  void unlock_host(std::span<const std::byte> memory) noexcept override { locked_.remove(memory); }

  std::unique_ptr<kernels::Device> device_;
  // One thread at a time has the turn: does operations, or a lane's copies. Lanes do what they follow
  // on threads of their own, and an operation may call the device. Who enqueues needs no turn, nor who
  // waits for what is done: an operation may be waiting for a peer that waits for the caller.
  std::atomic<std::thread::id> turn_;
  std::atomic<std::thread::id> worker_;  // does an operation now
  mutable std::recursive_mutex mutex_;   // for all below
  std::condition_variable_any changed_;  // turn_ or num_done_
  // Buffers follow each other and no address is used again, so that one call protects them all.
  static constexpr int64_t kReservedBytes = int64_t{16} << 30;
  std::byte* memory_ = nullptr;
  int64_t used_bytes_ = 0;
  bool accessible_ = false;
  std::unordered_map<std::byte*, int64_t> buffers_;  // start -> bytes of whole pages
  int64_t allocated_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t largest_bytes_ = kReservedBytes;

  std::deque<Operation> queue_;  // called and not done
  int64_t num_done_ = 0;
  std::unordered_map<kernels::TimeMark, kernels::TimeMark> passed_;  // mark -> when
  std::deque<kernels::TimeMark> kept_;                               // those of passed_, in order
  int64_t first_broken_ = std::numeric_limits<int64_t>::max();
  int num_failures_ = 0;
  std::atomic<bool> hangs_ = false;
  bool lanes_held_ = false;
  std::deque<std::function<void()>> held_copies_;
  AddressRanges locked_;
  std::atomic<bool> refuses_locks_ = false;
  std::atomic<int64_t> num_gathered_ = 0;
};

}  // namespace millrace::test
