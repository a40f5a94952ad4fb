// SPDX-License-Identifier: Apache-2.0
// A device that holds memory and computes nothing, which is all that loading weights needs. With
// `num_threads` 0 it cannot read the host's memory, like a GPU.
#pragma once

#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "kernels/api/device_memory.h"

namespace millrace::test {

class MemoryDevice final : public kernels::DeviceMemory {
 public:
  explicit MemoryDevice(int num_threads, int64_t capacity_bytes = 1 << 30)
      : num_threads_(num_threads), capacity_bytes_(capacity_bytes) {}
  ~MemoryDevice() override { MR_CHECK(allocated_bytes_ == 0, "leak of {}", allocated_bytes_); }

  int64_t allocated_bytes() const { return allocated_bytes_; }
  void set_float8_products(bool computes) { float8_products_ = computes; }
  void set_width_step(int32_t step) { width_step_ = step; }
  void set_head_dims(int32_t step, int32_t max, int32_t rotary_step) {
    head_dim_step_ = step;
    max_head_dim_ = max;
    rotary_dim_step_ = rotary_step;
  }
  void set_doubling_head_dims(bool doubling) { doubling_head_dims_ = doubling; }
  void set_max_hidden_size(int32_t size) { max_hidden_size_ = size; }

  kernels::DeviceInfo info() const override {
    return {.name = "memory",
            .num_threads = num_threads_,
            .host_memory = num_threads_ > 0,
            .float8_products = float8_products_,
            .head_dim_step = head_dim_step_,
            .doubling_head_dims = doubling_head_dims_,
            .max_head_dim = max_head_dim_,
            .rotary_dim_step = rotary_dim_step_,
            .width_step = width_step_,
            .max_hidden_size = max_hidden_size_};
  }
  int64_t free_bytes() const override { return capacity_bytes_ - allocated_bytes_; }
  Result<kernels::HostBuffer> allocate_host(int64_t bytes) override {
    return kernels::HostBuffer(this, std::malloc(static_cast<std::size_t>(bytes)), bytes);
  }
  Result<kernels::DeviceBuffer> allocate(int64_t bytes) override {
    if (allocated_bytes_ + bytes > capacity_bytes_) {
      return error(Errc::kExhausted, "{} bytes asked for, {} of {} in use", bytes, allocated_bytes_,
                   capacity_bytes_);
    }
    allocated_bytes_ += bytes;
    return kernels::DeviceBuffer(this, std::malloc(static_cast<std::size_t>(bytes)), bytes);
  }
  void copy(void* destination, const void* source, int64_t bytes) override {
    std::memcpy(destination, source, static_cast<std::size_t>(bytes));
  }
  void copy_rows(const kernels::CopyRowsParams&) override { refuse(); }
  void copy_pieces(const kernels::CopyPiecesParams&) override { refuse(); }
  Result<void> synchronize(Deadline) override { return {}; }
  std::unique_ptr<kernels::CopyLane> make_copy_lane() override {
    return std::make_unique<kernels::HostCopyLane>();
  }
  kernels::TimeMark mark() override { return {}; }
  Result<void> wait_for(kernels::TimeMark, Deadline) override { return {}; }
  double elapsed_s(kernels::TimeMark, kernels::TimeMark) const override { return 0; }

 private:
  static void refuse() { MR_CHECK(false, "a MemoryDevice computes nothing"); }
  void free(void* data, int64_t bytes) noexcept override {
    std::free(data);
    allocated_bytes_ -= bytes;
  }

  void free_host(void* data) noexcept override { std::free(data); }

  int num_threads_;
  bool float8_products_ = true;
  int32_t width_step_ = 1;
  bool doubling_head_dims_ = false;
  int32_t head_dim_step_ = 1, max_head_dim_ = 256, rotary_dim_step_ = 2;
  int32_t max_hidden_size_ = 1 << 20;
  int64_t capacity_bytes_;
  int64_t allocated_bytes_ = 0;
};

}  // namespace millrace::test
