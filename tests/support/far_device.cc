#include "tests/support/far_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "common/check.h"
#include "common/units.h"

namespace millrace::test {

using kernels::CopyRowsParams;

// Device memory may be touched while one of these lives.
class FarDevice::Access {
 public:
  explicit Access(const FarDevice& device) : device_(device) { device_.protect(false); }
  ~Access() { device_.protect(true); }

 private:
  const FarDevice& device_;
};

// Has the device catch up with what it follows, which a GPU does by itself, and copies at once.
class FarDevice::Lane final : public kernels::CopyLane {
 public:
  explicit Lane(FarDevice& device) : device_(device) {}
  void follow() override {
    const std::lock_guard lock(device_.mutex_);
    followed_ = device_.num_called();
  }
  void copy_rows(const CopyRowsParams& params) override {
    const std::lock_guard lock(device_.mutex_);
    if (device_.lanes_held_) return device_.held_copies_.push_back(params);
    device_.catch_up(followed_);
    const Access access(device_);
    kernels::copy_host_rows(params);
  }
  Result<void> synchronize(Deadline) override {
    const std::lock_guard lock(device_.mutex_);
    if (!device_.lanes_held_) return {};
    return error(Errc::kDeadlineExceeded, "{} copies are held", device_.held_copies_.size());
  }

 private:
  FarDevice& device_;
  int64_t followed_ = 0;
};

std::unique_ptr<kernels::CopyLane> FarDevice::make_copy_lane() {
  return std::make_unique<Lane>(*this);
}

FarDevice::FarDevice(std::unique_ptr<kernels::Device> device) : device_(std::move(device)) {
  void* reserved =
      mmap(nullptr, kReservedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MR_CHECK(reserved != MAP_FAILED, "no {} bytes of addresses", kReservedBytes);
  memory_ = static_cast<std::byte*>(reserved);
}

FarDevice::~FarDevice() {
  MR_CHECK(buffers_.empty(), "{} buffers outlive the device", buffers_.size());
  munmap(memory_, kReservedBytes);
}

kernels::DeviceInfo FarDevice::info() const {
  auto info = device_->info();
  info.name = "far " + info.name;
  info.host_memory = false;
  info.sliding_windows = false;  // as on a GPU
  return info;
}

Result<kernels::DeviceBuffer> FarDevice::allocate(int64_t bytes) {
  if (bytes == 0) return kernels::DeviceBuffer(this, nullptr, 0);
  if (bytes > largest_bytes_) {
    return error(Errc::kExhausted, "{} bytes of {} in one piece", bytes, largest_bytes_);
  }
  const int64_t mapped = round_up(bytes, int64_t{sysconf(_SC_PAGESIZE)});
  const std::lock_guard lock(mutex_);
  MR_CHECK(mapped <= kReservedBytes - used_bytes_, "{} bytes after {}", mapped, used_bytes_);
  std::byte* data = memory_ + used_bytes_;
  used_bytes_ += mapped;
  buffers_.emplace(data, mapped);
  allocated_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
  return kernels::DeviceBuffer(this, data, bytes);
}

void FarDevice::free(void* data, int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    catch_up(num_called());          // as cudaFree does
  } catch (const std::exception&) {  // broken, which cudaFree does not mind
    queue_.clear();
  }
  const auto known = buffers_.find(static_cast<std::byte*>(data));
  madvise(data, static_cast<size_t>(known->second), MADV_DONTNEED);
  buffers_.erase(known);
  allocated_bytes_ -= bytes;
}

Result<kernels::HostBuffer> FarDevice::allocate_host(int64_t bytes) {
  if (bytes == 0) return kernels::HostBuffer(this, nullptr, 0);
  return kernels::HostBuffer(this, std::malloc(static_cast<size_t>(bytes)), bytes);
}

void FarDevice::free_host(void* data) noexcept {
  std::free(data);
}

void FarDevice::protect(bool on) const {
  const int protection = on ? PROT_NONE : PROT_READ | PROT_WRITE;
  MR_CHECK(mprotect(memory_, static_cast<size_t>(used_bytes_), protection) == 0,
           "mprotect of {} bytes", used_bytes_);
}

void FarDevice::copy(void* destination, const void* source, int64_t bytes) {
  copy_rows({.destination = destination, .source = source, .row_bytes = bytes, .num_rows = 1});
}

void FarDevice::copy_rows(const CopyRowsParams& params) {
  if (params.row_bytes == 0 || params.num_rows == 0) return;
  enqueue_own([params] { kernels::copy_host_rows(params); });
}

void FarDevice::enqueue(std::function<void()> operation) {
  const std::lock_guard lock(mutex_);
  MR_CHECK(!inside_, "an operation of others inside of one");
  queue_.push_back({.run = std::move(operation), .is_own = false});
}

void FarDevice::enqueue_own(std::function<void()> operation) {
  const std::lock_guard lock(mutex_);
  if (inside_) {
    const Access access(*this);
    return operation();
  }
  queue_.push_back({.run = std::move(operation), .is_own = true});
}

void FarDevice::break_after(int64_t num_operations) {
  const std::lock_guard lock(mutex_);
  first_broken_ = num_called() + num_operations;
}

void FarDevice::catch_up(int64_t count) {
  const std::lock_guard lock(mutex_);
  if (inside_) return;
  // Over operations that follow each other: the system takes longer for it than they do.
  std::unique_ptr<Access> access;
  while (num_done_ < count) {
    if (num_done_ == first_broken_) {
      throw std::runtime_error(fmt::format("failure {}", ++num_failures_));
    }
    if (!queue_.front().is_own) {
      access.reset();
    } else if (!access) {
      access = std::make_unique<Access>(*this);
    }
    inside_ = true;
    queue_.front().run();
    inside_ = false;
    queue_.pop_front();
    ++num_done_;
  }
}

void FarDevice::hold_lanes() {
  const std::lock_guard lock(mutex_);
  lanes_held_ = true;
}

void FarDevice::release_lanes() {
  const std::lock_guard lock(mutex_);
  lanes_held_ = false;
  catch_up(num_called());
  const Access access(*this);
  for (const auto& copy : std::exchange(held_copies_, {})) kernels::copy_host_rows(copy);
}

kernels::TimeMark FarDevice::mark() {
  const std::lock_guard lock(mutex_);
  const kernels::TimeMark mark{num_called() + 1};
  enqueue_own([this, mark] {
    passed_[mark] = kernels::host_time_mark();
    kept_.push_back(mark);
    if (std::ssize(kept_) <= kernels::kMarksKept) return;
    passed_.erase(kept_.front());
    kept_.pop_front();
  });
  return mark;
}

Result<void> FarDevice::wait_for(kernels::TimeMark mark, Deadline deadline) {
  if (hangs_) return error(Errc::kDeadlineExceeded, "the device hangs");
  const std::lock_guard lock(mutex_);
  const auto count = static_cast<int64_t>(mark);
  if (num_done_ < count && deadline.passed()) {
    return error(Errc::kDeadlineExceeded, "{} operations are done, not {}", num_done_, count);
  }
  catch_up(count);
  return {};
}

double FarDevice::elapsed_s(kernels::TimeMark from, kernels::TimeMark to) const {
  const std::lock_guard lock(mutex_);
  MR_CHECK(passed_.contains(from) && passed_.contains(to), "mark {} to {}, {} operations are done",
           static_cast<int64_t>(from), static_cast<int64_t>(to), num_done_);
  return kernels::host_elapsed_s(passed_.at(from), passed_.at(to));
}

Result<void> FarDevice::synchronize(Deadline) {
  if (hangs_) return error(Errc::kDeadlineExceeded, "the device hangs");
  const std::lock_guard lock(mutex_);
  catch_up(num_called());
  return {};
}

}  // namespace millrace::test
