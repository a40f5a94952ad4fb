#include "kvclient/device/cuda_copier.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/units.h"
#include "kvclient/device/scatter_ptx.h"

namespace millrace::kvclient {

namespace {

constexpr unsigned kNonBlockingStream = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kWarps = 4;              // of a block; scatter_ptx.cc has the same
constexpr unsigned kWarpThreads = 32;
// What one warp copies: eight rounds of 16 bytes a thread, so that many warps share a request.
constexpr uint32_t kWarpBytes = 4096;
constexpr int64_t kAlign = 16;

// As the kernel reads it.
struct WarpCopy {
  uint64_t to;
  uint32_t from;
  uint32_t bytes;
};
static_assert(sizeof(WarpCopy) == 16);

// The context is current on this thread for as long as it lives.
class ContextScope {
 public:
  ContextScope(const CudaDriver& driver, void* context) : driver_(driver) {
    status_ = driver.push_context(context);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    void* popped = nullptr;
    if (status_ == 0) driver_.pop_context(&popped);
  }
  Result<void> check() const { return driver_.check(status_, "using the GPU's context"); }

 private:
  const CudaDriver& driver_;
  CudaDriver::Status status_;
};

}  // namespace

class CudaCopier::Lane final : public DeviceLane {
 public:
  Lane(const CudaDriver& driver, const Gpu& gpu) : driver_(driver), gpu_(gpu) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() override {
    const ContextScope scope(driver_, gpu_.context);
    drop_memory();
    if (stream_ != nullptr) driver_.destroy_stream(stream_);
  }

  Result<void> prepare() {
    const ContextScope scope(driver_, gpu_.context);
    MR_RETURN_IF_ERROR(scope.check());
    return driver_.check(driver_.create_stream(&stream_, kNonBlockingStream), "a stream");
  }

  Result<std::span<std::byte>> staging(int64_t bytes) override {
    if (bytes > data_bytes_) {
      // Without a list: room for pieces of rows of 64 bytes and more.
      const auto scope = ContextScope(driver_, gpu_.context);
      MR_RETURN_IF_ERROR(scope.check());
      MR_RETURN_IF_ERROR(allocate(round_up(bytes, kAlign)));
    }
    return std::span(host_, static_cast<size_t>(data_bytes_));
  }

  Result<void> scatter(int64_t bytes, std::span<const DevicePiece> pieces) override {
    const ContextScope scope(driver_, gpu_.context);
    MR_RETURN_IF_ERROR(scope.check());
    const int64_t list_at = round_up(bytes, kAlign);
    const auto room = static_cast<size_t>(list_bytes(data_bytes_)) / sizeof(WarpCopy);
    auto* const list = reinterpret_cast<WarpCopy*>(host_ + list_at);
    // More than there is room for takes several turns; rows shorter than 64 bytes alone do.
    for (size_t next = 0, at = 0; next < pieces.size();) {
      uint32_t count = 0;
      for (; next < pieces.size() && count < room; ++count) {
        const DevicePiece& piece = pieces[next];
        const auto size = static_cast<uint32_t>(std::min<size_t>(piece.bytes - at, kWarpBytes));
        list[count] = {.to = reinterpret_cast<uint64_t>(piece.to) + at,
                       .from = piece.from + static_cast<uint32_t>(at),
                       .bytes = size};
        at += size;
        if (at == piece.bytes) {
          ++next;
          at = 0;
        }
      }
      const auto sent = send(list_at, count);
      // Also after an error: nothing that was begun goes on behind the caller's back.
      const auto ended = driver_.check(driver_.synchronize(stream_), "copying pages to the GPU");
      MR_RETURN_IF_ERROR(sent);
      MR_RETURN_IF_ERROR(ended);
    }
    return {};
  }

 private:
  static int64_t list_bytes(int64_t data_bytes) {
    return data_bytes / 4 + int64_t{kAlign} * static_cast<int64_t>(sizeof(WarpCopy));
  }

  void drop_memory() {
    if (host_ != nullptr) driver_.free_host(host_);
    if (device_ != 0) driver_.free(device_);
    host_ = nullptr;
    device_ = 0;
    data_bytes_ = 0;
  }

  Result<void> allocate(int64_t data_bytes) {
    drop_memory();
    const auto all = static_cast<size_t>(data_bytes + list_bytes(data_bytes));
    void* host = nullptr;
    MR_RETURN_IF_ERROR(driver_.check(driver_.allocate_host(&host, all, 0), "pinned memory"));
    host_ = static_cast<std::byte*>(host);
    MR_RETURN_IF_ERROR(driver_.check(driver_.allocate(&device_, all), "memory of the GPU"));
    data_bytes_ = data_bytes;
    return {};
  }

  Result<void> send(int64_t list_at, uint32_t count) {
    const auto all = static_cast<size_t>(list_at) + count * sizeof(WarpCopy);
    MR_RETURN_IF_ERROR(driver_.check(driver_.copy_to_device(device_, host_, all, stream_),
                                     "copying pages to the GPU"));
    CudaDriver::Address list = device_ + static_cast<CudaDriver::Address>(list_at);
    std::array<void*, 3> parameters{&device_, &list, &count};
    return driver_.check(
        driver_.launch(gpu_.scatter, ceil_div(count, kWarps), 1, 1, kWarps * kWarpThreads, 1, 1, 0,
                       stream_, parameters.data(), nullptr),
        "putting pages in their places");
  }

  const CudaDriver& driver_;
  const Gpu gpu_;
  void* stream_ = nullptr;
  std::byte* host_ = nullptr;  // [data_bytes_][list]
  CudaDriver::Address device_ = 0;
  int64_t data_bytes_ = 0;
};

CudaCopier::~CudaCopier() {
  if (gpus_.empty()) return;
  const auto driver = CudaDriver::get();
  for (const auto& [ordinal, gpu] : gpus_) {
    {
      const ContextScope scope(**driver, gpu.context);
      (*driver)->unload_module(gpu.module);
    }
    (*driver)->release_primary_context(gpu.device);
  }
}

Result<void> CudaCopier::prepare(const CudaDriver& driver, Gpu& gpu) {
  const ContextScope scope(driver, gpu.context);
  MR_RETURN_IF_ERROR(scope.check());
  MR_RETURN_IF_ERROR(
      driver.check(driver.load_module(&gpu.module, kScatterPtx), "loading the copy kernel"));
  return driver.check(driver.get_function(&gpu.scatter, gpu.module, "mr_scatter"),
                      "finding the copy kernel");
}

Result<std::unique_ptr<DeviceLane>> CudaCopier::open(int32_t device) {
  MR_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::get());
  const std::lock_guard lock(mutex_);
  auto known = gpus_.find(device);
  if (known == gpus_.end()) {
    Gpu gpu;
    if (driver->device_get(&gpu.device, device) != 0) {
      return error(Errc::kUnsupported, "there is no CUDA device {}", device);
    }
    MR_RETURN_IF_ERROR(driver->check(driver->retain_primary_context(&gpu.context, gpu.device),
                                     "the GPU's primary context"));
    if (auto prepared = prepare(*driver, gpu); !prepared.ok()) {
      driver->release_primary_context(gpu.device);
      return prepared.error();
    }
    known = gpus_.emplace(device, gpu).first;
  }
  auto lane = std::make_unique<Lane>(*driver, known->second);
  MR_RETURN_IF_ERROR(lane->prepare());
  return std::unique_ptr<DeviceLane>(std::move(lane));
}

}  // namespace millrace::kvclient
