// SPDX-License-Identifier: Apache-2.0
// A CPU device that behaves like one with separate memory that always lags behind the host. An
// operation is done only when something waits for it, on the waiting thread or on that of another
// waiter. The host faults when it touches device memory, sees copies to it only once it has waited,
// and fails if it takes back host memory too early. Code that works on it makes no assumption that
// a GPU would break.
#pragma once

#include <algorithm>
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
  // `device` does the work. Its memory must be the host's.
  explicit FarDevice(std::unique_ptr<kernels::Device> device);
  ~FarDevice() override;

  // Device memory in use, and its peak since reset_peak().
  int64_t allocated_bytes() const { return allocated_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = allocated_bytes_; }

  // Allocations larger than this fail with kExhausted, as on a GPU without that much in one piece.
  void refuse_larger_than(int64_t bytes) { largest_bytes_ = bytes; }

  // From now on, at most this much is said to be free.
  void set_most_free_bytes(int64_t bytes) { most_free_bytes_ = bytes; }

  // Enqueues something to be done in the order of the operations, for instance a collective. What
  // it asks of this device is done at once.
  void enqueue(std::function<void()> operation);
  // Fails like a GPU: whoever waits for an operation after the next `num_operations` gets a
  // std::runtime_error, "failure 1" the first time.
  void break_after(int64_t num_operations);
  // Hangs like a GPU that waits for a lost peer: from now on, waiting for it runs out of time.
  void hang() { hangs_ = true; }
  // Hangs the lanes of a GPU: from now on, their copies do not end, and waiting for them runs out
  // of time.
  void hold_lanes();
  // Whether locking memory fails with kExhausted.
  void refuse_locks(bool refuse) { refuses_locks_ = refuse; }
  // Pages that lanes have gathered.
  int64_t num_gathered() const { return num_gathered_; }
  // Pages that lanes have scattered.
  int64_t num_scattered() const { return num_scattered_; }
  // Lets the held copies end after all, in their order.
  void release_lanes();

  kernels::DeviceInfo info() const override;
  int64_t free_bytes() const override { return std::min(most_free_bytes_, device_->free_bytes()); }
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
  void float8_quantize(const kernels::Float8QuantizeParams& params) override {
    run(&Device::float8_quantize, params);
  }
  void float8_rms_norm(const kernels::Float8RmsNormParams& params) override {
    run(&Device::float8_rms_norm, params);
  }
  void float8_gemm(const kernels::Float8GemmParams& params) override {
    run(&Device::float8_gemm, params);
  }
  void float8_swiglu(const kernels::Float8SwigluParams& params) override {
    run(&Device::float8_swiglu, params);
  }
  void float8_experts(const kernels::Float8ExpertsParams& params) override {
    run(&Device::float8_experts, params);
  }
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
  void last_row_sums(const kernels::LastRowSumsParams& params) override {
    run(&Device::last_row_sums, params);
  }
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
    bool is_own = false;  // touches device memory, or is a mark
  };

  template <typename Operations, typename Params>
  void run(void (Operations::*operation)(const Params&), const Params& params) {
    enqueue_own([this, operation, kept = KeptParams<Params>(params)] {
      (device_.get()->*operation)(*kept);
    });
  }
  // Operations called so far, whether done or not.
  int64_t num_called() const;
  // Whether the caller is itself an operation.
  bool inside() const { return worker_ == std::this_thread::get_id(); }
  // The next of the first `count` operations that is not done, or null.
  const Operation* next_operation(int64_t count);
  // Does those of the first `count` operations that are not done.
  void catch_up(int64_t count);
  void enqueue_own(std::function<void()> operation);
  void set_accessible(bool accessible);
  void free(void* data, int64_t bytes) noexcept override;
  void free_host(void* data) noexcept override;
  void unlock_host(std::span<const std::byte> memory) noexcept override { locked_.remove(memory); }

  std::unique_ptr<kernels::Device> device_;
  // One thread at a time has the turn: it does operations, or a lane's copies. Lanes do what they
  // follow on threads of their own, and an operation may call the device. Enqueueing needs no turn,
  // nor does waiting for what is already done: an operation may be waiting for a peer that waits
  // for the caller.
  std::atomic<std::thread::id> turn_;
  std::atomic<std::thread::id> worker_;  // the thread that runs an operation now
  mutable std::recursive_mutex mutex_;   // guards everything below
  std::condition_variable_any changed_;  // turn_ or num_done_ changed
  // Buffers are contiguous and no address is used twice, so that one call protects them all.
  static constexpr int64_t kReservedBytes = int64_t{16} << 30;
  std::byte* memory_ = nullptr;
  int64_t used_bytes_ = 0;
  bool accessible_ = false;
  std::unordered_map<std::byte*, int64_t> buffers_;  // start -> bytes of whole pages
  int64_t allocated_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t largest_bytes_ = kReservedBytes;
  int64_t most_free_bytes_ = std::numeric_limits<int64_t>::max();

  std::deque<Operation> queue_;  // called but not done
  int64_t num_done_ = 0;
  std::unordered_map<kernels::TimeMark, kernels::TimeMark> passed_;  // mark -> when it was passed
  std::deque<kernels::TimeMark> kept_;  // the marks in passed_, in order
  int64_t first_broken_ = std::numeric_limits<int64_t>::max();
  int num_failures_ = 0;
  std::atomic<bool> hangs_ = false;
  bool lanes_held_ = false;
  std::deque<std::function<void()>> held_copies_;
  AddressRanges locked_;
  std::atomic<bool> refuses_locks_ = false;
  std::atomic<int64_t> num_gathered_ = 0;
  std::atomic<int64_t> num_scattered_ = 0;
};

}  // namespace millrace::test
