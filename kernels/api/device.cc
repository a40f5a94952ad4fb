// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/device.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/units.h"

namespace millrace::kernels {

bool DeviceInfo::computes_in(DType dtype) const {
  switch (dtype) {
    case DType::kFloat32:
      return float32_compute;
    case DType::kBFloat16:
      return true;
    case DType::kFloat16:
      return float16_compute;
  }
  return false;
}

int32_t DeviceInfo::head_dim_from(int32_t head_dim) const {
  auto steps = static_cast<uint64_t>(ceil_div(int64_t{head_dim}, int64_t{head_dim_step}));
  if (doubling_head_dims) steps = std::bit_ceil(steps);
  return static_cast<int32_t>(
      std::min(static_cast<int64_t>(steps) * head_dim_step, int64_t{max_head_dim}));
}

DType DeviceInfo::projection_dtype(DType compute_dtype) const {
  const bool narrow = narrow_projections && compute_dtype == DType::kBFloat16;
  return narrow ? DType::kBFloat16 : DType::kFloat32;
}

Result<HostLock> DeviceMemory::lock_host(std::span<const std::byte>) {
  return error(Errc::kUnsupported, "{}: its memory is the host's", info().name);
}

Result<SharedBuffer> DeviceMemory::allocate_shared(int64_t) {
  return error(Errc::kUnsupported, "{}: other processes cannot map its memory", info().name);
}

void Float8Operations::float8_decode_pieces(const Float8DecodePiecesParams& params) {
  for (const Float8Piece& piece : params.pieces) {
    float8_decode({.codes = params.codes + piece.codes,
                   .codes_stride = params.codes_stride,
                   .x = static_cast<std::byte*>(params.x) + piece.x * dtype_bytes(params.dtype),
                   .dtype = params.dtype,
                   .x_stride = params.x_stride,
                   .num_planes = params.num_planes,
                   .count = piece.count,
                   .scale = params.scale});
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) device_->free(data_, bytes_);
}

TimeMark host_time_mark() {
  return TimeMark(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

double host_elapsed_s(TimeMark from, TimeMark to) {
  return static_cast<double>(static_cast<int64_t>(to) - static_cast<int64_t>(from)) * 1e-9;
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) device_->free_host(data_);
}

HostLock::HostLock(HostLock&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), memory_(other.memory_) {}

HostLock& HostLock::operator=(HostLock&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  return *this;
}

HostLock::~HostLock() {
  if (device_ != nullptr) device_->unlock_host(memory_);
}

}  // namespace millrace::kernels
