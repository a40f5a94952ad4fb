// SPDX-License-Identifier: Apache-2.0
// A device's memory and its order of execution, without the operations of a model. Order, threads and
// errors: kernels/api/device.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/clock.h"
#include "common/result.h"
#include "kernels/api/copy_lane.h"
#include "kernels/api/copy_pieces.h"
#include "kernels/api/copy_rows.h"
#include "kernels/api/device_info.h"

struct CUstream_st;  // CUDA's: what a cudaStream_t points to

namespace millrace::kernels {

// A point in a device's order of execution; see DeviceMemory::mark.
enum class TimeMark : int64_t {};
// Marks that stay valid. A prompt that is set aside still needs its own after another has run, which takes a
// dozen in each layer.
inline constexpr int64_t kMarksKept = 4096;

// The stream of a GPU's operations, for a library that orders its own work relative to them.
struct GpuStream {
  int gpu = 0;                    // among those this process sees
  CUstream_st* handle = nullptr;  // a cudaStream_t
};

class DeviceMemory;

// Owns device memory, uninitialised. The device that allocated it must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceMemory* device, void* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  DeviceMemory* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Device memory that other processes of the host can map through a file descriptor, which the buffer owns. The
// memory stays allocated as long as any process has it mapped.
struct SharedBuffer {
  DeviceBuffer memory;
  int descriptor = -1;
  int64_t mapped_bytes = 0;  // what the descriptor names, from memory.data() on
};

// Owns host memory that the device copies from and to at full speed (page-locked on a GPU). Otherwise like
// DeviceBuffer.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(DeviceMemory* device, void* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  DeviceMemory* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Keeps host memory that somebody else owns page-locked, so that the device's copy lanes can read it. Must be
// destroyed before the memory and the device, when no lane gathers from it any more.
class HostLock {
 public:
  HostLock() = default;
  HostLock(DeviceMemory* device, std::span<const std::byte> memory)
      : device_(device), memory_(memory) {}
  HostLock(HostLock&& other) noexcept;
  HostLock& operator=(HostLock&& other) noexcept;
  ~HostLock();

 private:
  DeviceMemory* device_ = nullptr;
  std::span<const std::byte> memory_;
};

// Marks of a device whose calls return when their work is done.
TimeMark host_time_mark();
double host_elapsed_s(TimeMark from, TimeMark to);

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual DeviceInfo info() const = 0;
  // What could be allocated now, in all.
  virtual int64_t free_bytes() const = 0;

  // 64-byte aligned. kExhausted with the numbers when it does not fit.
  virtual Result<DeviceBuffer> allocate(int64_t bytes) = 0;
  virtual Result<HostBuffer> allocate_host(int64_t bytes) = 0;
  // One byte at least. kExhausted; kUnsupported: the device, or where this process runs, has none.
  virtual Result<SharedBuffer> allocate_shared(int64_t bytes);
  // Page-locks memory for the device to read, also what this process may only read itself. Whole pages of the system,
  // on any thread, whatever others do with the device. kUnsupported: the device's memory is the host's, or the
  // host's is not seen under the same addresses; kExhausted: the system locks no more. A single copy() or
  // copy_rows() must stay within what was locked at once.
  virtual Result<HostLock> lock_host(std::span<const std::byte> memory);
  // Copies between host and device memory in either direction, in stream order. Host memory stays
  // as it is until synchronize(), and has what was copied to it after.
  virtual void copy(void* destination, const void* source, int64_t bytes) = 0;
  virtual void copy_rows(const CopyRowsParams& params) = 0;
  // Device memory only.
  virtual void copy_pieces(const CopyPiecesParams& params) = 0;
  virtual Result<void> synchronize(Deadline deadline) = 0;

  virtual std::unique_ptr<CopyLane> make_copy_lane() = 0;
  // None: calls return when their work is done.
  virtual std::optional<GpuStream> gpu_stream() const { return std::nullopt; }

  // The moment at which all operations called so far are done; greater than the marks before.
  // elapsed_s is the time between two of the last kMarksKept, known once the later one is passed.
  virtual TimeMark mark() = 0;
  // Until `mark`, one of the last kMarksKept, is passed: host memory has what was copied to it
  // before. What was called after may still run.
  virtual Result<void> wait_for(TimeMark mark, Deadline deadline) = 0;
  virtual double elapsed_s(TimeMark from, TimeMark to) const = 0;

 private:
  friend class DeviceBuffer;
  friend class HostBuffer;
  friend class HostLock;
  virtual void free(void* data, int64_t bytes) noexcept = 0;
  virtual void free_host(void* data) noexcept = 0;
  virtual void unlock_host(std::span<const std::byte> /*memory*/) noexcept {}
};

}  // namespace millrace::kernels
