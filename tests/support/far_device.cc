// SPDX-License-Identifier: Apache-2.0
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

// Device memory is accessible to the host while one of these lives.
class FarDevice::Access {
 public:
  explicit Access(FarDevice& device) : device_(device) { device_.set_accessible(true); }
  ~Access() { device_.set_accessible(false); }

 private:
  FarDevice& device_;
};

// Waits until the previous thread gives up the turn, and takes it; or only until `count` operations
// are done.
class FarDevice::Turn {
 public:
  explicit Turn(FarDevice& device, int64_t count = std::numeric_limits<int64_t>::max())
      : device_(device), nested_(device.turn_ == std::this_thread::get_id()) {
    if (nested_) return;
    std::unique_lock lock(device_.mutex_);
    const auto is_done = [&] { return device_.num_done_ >= count; };
    device_.changed_.wait(lock, [&] { return is_done() || device_.turn_ == std::thread::id(); });
    if (!is_done()) device_.turn_ = std::this_thread::get_id();
  }
  ~Turn() {
    if (nested_ || device_.turn_ != std::this_thread::get_id()) return;
    const std::lock_guard lock(device_.mutex_);
    device_.turn_ = std::thread::id();
    device_.changed_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  FarDevice& device_;
  const bool nested_;
};

// Makes the device catch up with the operations that it follows, which a GPU does by itself, and
// copies at once.
class FarDevice::Lane final : public kernels::CopyLane {
 public:
  explicit Lane(FarDevice& device) : device_(device) {}
  void follow() override { followed_ = device_.num_called(); }
  void copy_rows(const CopyRowsParams& params) override {
    copy([params] { kernels::copy_host_rows(params); });
  }
  bool reaches(std::span<const std::byte> bytes) const override {
    return device_.locked_.contain(bytes);
  }
  void gather_pages(const kernels::GatherPagesParams& params) override {
    for (const auto& page : params.pages) {
      const bool is_own = page.bytes >= device_.memory_ &&
                          page.bytes + params.page_bytes <= device_.memory_ + device_.used_bytes_;
      MR_CHECK(is_own || reaches({page.bytes, static_cast<size_t>(params.page_bytes)}),
               "a page out of reach");
    }
    std::vector<kernels::SourcePage> pages(params.pages.begin(), params.pages.end());
    device_.num_gathered_ += std::ssize(pages);
    copy([this, pages = std::move(pages), to = params]() mutable {
      to.pages = pages;
      damaged_page_ = kernels::gather_host_pages(to);
    });
  }
  void scatter_pages(const kernels::ScatterPagesParams& params) override {
    const auto check_own = [&](const void* from, int64_t bytes) {
      const auto* at = static_cast<const std::byte*>(from);
      MR_CHECK(at >= device_.memory_ && at + bytes <= device_.memory_ + device_.used_bytes_,
               "{} bytes out of reach", bytes);
    };
    const auto count = std::ssize(params.pages);
    check_own(params.k, count * params.page_bytes / 2);
    check_own(params.v, count * params.page_bytes / 2);
    for (const std::byte* page : params.pages) check_own(page, params.page_bytes);
    device_.num_scattered_ += count;
    std::vector<std::byte*> pages(params.pages.begin(), params.pages.end());
    copy([pages = std::move(pages), from = params]() mutable {
      from.pages = pages;
      kernels::scatter_host_pages(from);
    });
  }
  std::optional<int64_t> damaged_page() const override { return damaged_page_; }
  Result<void> synchronize(Deadline) override {
    const std::lock_guard lock(device_.mutex_);
    if (!device_.lanes_held_) return {};
    return error(Errc::kDeadlineExceeded, "{} copies are held", device_.held_copies_.size());
  }

 private:
  void copy(std::function<void()> what) {
    {
      const std::lock_guard lock(device_.mutex_);
      if (device_.lanes_held_) return device_.held_copies_.push_back(std::move(what));
    }
    const Turn turn(device_);
    device_.catch_up(followed_);
    const Access access(device_);
    what();
  }

  FarDevice& device_;
  int64_t followed_ = 0;
  std::optional<int64_t> damaged_page_;
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
  if (accessible_) set_accessible(true);
  buffers_.emplace(data, mapped);
  allocated_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
  return kernels::DeviceBuffer(this, data, bytes);
}

void FarDevice::free(void* data, int64_t bytes) noexcept {
  const Turn turn(*this);
  try {
    catch_up(num_called());          // as cudaFree does
  } catch (const std::exception&) {  // the device is broken, which cudaFree does not mind
    const std::lock_guard lock(mutex_);
    queue_.clear();
  }
  const std::lock_guard lock(mutex_);
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

Result<kernels::HostLock> FarDevice::lock_host(std::span<const std::byte> memory) {
  if (refuses_locks_) return error(Errc::kExhausted, "{} bytes are not locked", memory.size());
  locked_.add(memory);
  return kernels::HostLock(this, memory);
}

void FarDevice::set_accessible(bool accessible) {
  const std::lock_guard lock(mutex_);
  accessible_ = accessible;
  const int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
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
  MR_CHECK(!inside(), "an operation of others inside of one");
  const std::lock_guard lock(mutex_);
  queue_.push_back({.run = std::move(operation), .is_own = false});
}

void FarDevice::enqueue_own(std::function<void()> operation) {
  if (inside()) {
    const Access access(*this);
    return operation();
  }
  const std::lock_guard lock(mutex_);
  queue_.push_back({.run = std::move(operation), .is_own = true});
}

void FarDevice::break_after(int64_t num_operations) {
  const std::lock_guard lock(mutex_);
  first_broken_ = num_called() + num_operations;
}

int64_t FarDevice::num_called() const {
  const std::lock_guard lock(mutex_);
  return num_done_ + std::ssize(queue_);
}

void FarDevice::catch_up(int64_t count) {
  if (inside()) return;
  const Turn turn(*this, count);
  // Kept open over consecutive operations, because changing the protection takes longer than they
  // do.
  std::unique_ptr<Access> access;
  while (const Operation* operation = next_operation(count)) {
    if (!operation->is_own) {
      access.reset();
    } else if (!access) {
      access = std::make_unique<Access>(*this);
    }
    worker_ = std::this_thread::get_id();
    operation->run();
    worker_ = std::thread::id();
    const std::lock_guard lock(mutex_);
    queue_.pop_front();
    ++num_done_;
    changed_.notify_all();
  }
}

const FarDevice::Operation* FarDevice::next_operation(int64_t count) {
  const std::lock_guard lock(mutex_);
  if (num_done_ >= count) return nullptr;
  if (num_done_ == first_broken_) {
    throw std::runtime_error(fmt::format("failure {}", ++num_failures_));
  }
  return &queue_.front();
}

void FarDevice::hold_lanes() {
  const std::lock_guard lock(mutex_);
  lanes_held_ = true;
}

void FarDevice::release_lanes() {
  const Turn turn(*this);
  catch_up(num_called());
  const std::lock_guard lock(mutex_);
  lanes_held_ = false;
  const Access access(*this);
  for (const auto& copy : std::exchange(held_copies_, {})) copy();
}

kernels::TimeMark FarDevice::mark() {
  const std::lock_guard lock(mutex_);
  const kernels::TimeMark mark{num_called() + 1};
  enqueue_own([this, mark] {
    const std::lock_guard marks(mutex_);
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
  const auto count = static_cast<int64_t>(mark);
  if (deadline.passed()) {
    const std::lock_guard lock(mutex_);
    if (num_done_ >= count) return {};
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
  catch_up(num_called());
  return {};
}

}  // namespace millrace::test
