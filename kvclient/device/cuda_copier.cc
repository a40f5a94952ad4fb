// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/cuda_copier.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/units.h"
#include "kvclient/device/cuda_pool.h"
#include "kvclient/device/kernel_ptx.h"

namespace millrace::kvclient {

namespace {

constexpr unsigned kNonBlockingStream = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kWarps = 4;              // per block; the same as in scatter.cu
constexpr unsigned kWarpThreads = 32;
// Bytes that one warp copies: eight rounds of 16 bytes per thread, so that many warps share a
// request.
constexpr uint32_t kWarpBytes = 4096;
constexpr int64_t kAlign = 16;

// As the kernel reads it.
struct WarpCopy {
  uint64_t to;
  uint32_t from;
  uint32_t bytes;
};
static_assert(sizeof(WarpCopy) == 16);
static_assert(sizeof(PooledPage) == 24);  // the kernel reads it too

constexpr unsigned kGatherThreads = 256;  // per page; the same as in gather.cu

// Calls `add` for each part of the piece that one warp copies.
template <typename Add>
void for_each_warp(const DevicePiece& piece, const Add& add) {
  for (uint32_t at = 0; at < piece.bytes; at += kWarpBytes) {
    add(WarpCopy{.to = reinterpret_cast<uint64_t>(piece.to) + at,
                 .from = piece.from + at,
                 .bytes = std::min(piece.bytes - at, kWarpBytes)});
  }
}

// Makes the context current on this thread while it lives.
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
    drop_lists();
    if (stream_ != nullptr) driver_.destroy_stream(stream_);
  }

  Result<void> prepare() {
    const ContextScope scope(driver_, gpu_.context);
    MR_RETURN_IF_ERROR(scope.check());
    return driver_.check(driver_.create_stream(&stream_, kNonBlockingStream), "a stream");
  }

  Result<std::span<std::byte>> staging(int64_t bytes) override {
    if (bytes > data_bytes_) {
      // The size without a list; the list has room for pieces of rows of 64 bytes or more.
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
    // If there are more pieces than room, it takes several turns; only rows shorter than 64 bytes
    // need that.
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
      // Waits even after an error: nothing may still be running when this returns.
      const auto ended = driver_.check(driver_.synchronize(stream_), "copying pages to the GPU");
      MR_RETURN_IF_ERROR(sent);
      MR_RETURN_IF_ERROR(ended);
    }
    return {};
  }

  Result<std::vector<bool>> gather(const DevicePool& pool, int64_t page_bytes,
                                   std::span<const PooledPage> pages,
                                   std::span<const DevicePiece> pieces) override {
    const ContextScope scope(driver_, gpu_.context);
    MR_RETURN_IF_ERROR(scope.check());
    pages_.clear();
    copies_.clear();
    for (const PooledPage& page : pages) {
      const auto first = static_cast<uint32_t>(copies_.size());
      for (const auto& piece : pieces.subspan(page.first_piece, page.num_pieces)) {
        for_each_warp(piece, [&](const WarpCopy& copy) { copies_.push_back(copy); });
      }
      pages_.push_back({.offset = page.offset,
                        .checksum = page.checksum,
                        .first_piece = first,
                        .num_pieces = static_cast<uint32_t>(copies_.size()) - first});
    }
    MR_RETURN_IF_ERROR(make_lists());
    const auto sent = send_gather(dynamic_cast<const CudaPool&>(pool), page_bytes);
    const auto ended = driver_.check(driver_.synchronize(stream_), "gathering pages on the GPU");
    MR_RETURN_IF_ERROR(sent);
    MR_RETURN_IF_ERROR(ended);
    const auto* right = reinterpret_cast<const uint32_t*>(lists_);
    std::vector<bool> found(right, right + pages.size());
    return found;
  }

 private:
  // Layout: [whether each page is right, 32 bits each][pages][copies]
  size_t pages_at() const { return round_up(pages_.size() * sizeof(uint32_t), size_t{kAlign}); }
  size_t copies_at() const {
    return round_up(pages_at() + pages_.size() * sizeof(PooledPage), size_t{kAlign});
  }
  size_t lists_end() const { return copies_at() + copies_.size() * sizeof(WarpCopy); }

  // Writes what the kernel reads to pinned memory, with every page marked as not right yet.
  Result<void> make_lists() {
    if (lists_end() > lists_bytes_) {
      drop_lists();
      const size_t bytes = 2 * lists_end();
      void* host = nullptr;
      MR_RETURN_IF_ERROR(driver_.check(driver_.allocate_host(&host, bytes, 0), "pinned memory"));
      lists_ = static_cast<std::byte*>(host);
      MR_RETURN_IF_ERROR(
          driver_.check(driver_.allocate(&device_lists_, bytes), "memory of the GPU"));
      lists_bytes_ = bytes;
    }
    std::memset(lists_, 0, pages_at());
    std::memcpy(lists_ + pages_at(), pages_.data(), pages_.size() * sizeof(PooledPage));
    std::memcpy(lists_ + copies_at(), copies_.data(), copies_.size() * sizeof(WarpCopy));
    return {};
  }

  void drop_lists() {
    if (lists_ != nullptr) driver_.free_host(lists_);
    if (device_lists_ != 0) driver_.free(device_lists_);
    lists_ = nullptr;
    device_lists_ = 0;
    lists_bytes_ = 0;
  }

  Result<void> send_gather(const CudaPool& pool, int64_t page_bytes) {
    MR_RETURN_IF_ERROR(
        driver_.check(driver_.copy_to_device(device_lists_ + pages_at(), lists_ + pages_at(),
                                             lists_end() - pages_at(), stream_),
                      "telling the GPU what to gather"));
    CudaDriver::Address from = pool.address(), pages = device_lists_ + pages_at(),
                        copies = device_lists_ + copies_at();
    auto bytes = static_cast<uint32_t>(page_bytes);
    // Pinned memory has the same address on the GPU, which writes its findings there.
    auto* right = lists_;
    std::array<void*, 5> parameters{&from, &pages, &copies, &bytes, &right};
    return driver_.check(
        driver_.launch(gpu_.gather, static_cast<unsigned>(pages_.size()), 1, 1, kGatherThreads, 1,
                       1, bytes, stream_, parameters.data(), nullptr),
        "gathering pages on the GPU");
  }

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
  // For gather().
  std::vector<PooledPage> pages_;
  std::vector<WarpCopy> copies_;
  std::byte* lists_ = nullptr;
  CudaDriver::Address device_lists_ = 0;
  size_t lists_bytes_ = 0;
};

CudaCopier::~CudaCopier() {
  if (gpus_.empty()) return;
  const auto driver = CudaDriver::get();
  for (const auto& [ordinal, gpu] : gpus_) {
    {
      const ContextScope scope(**driver, gpu.context);
      (*driver)->unload_module(gpu.scatter_module);
      (*driver)->unload_module(gpu.gather_module);
    }
    (*driver)->release_primary_context(gpu.device);
  }
}

Result<void> CudaCopier::prepare(const CudaDriver& driver, Gpu& gpu) {
  const ContextScope scope(driver, gpu.context);
  MR_RETURN_IF_ERROR(scope.check());
  MR_RETURN_IF_ERROR(
      driver.check(driver.load_module(&gpu.scatter_module, kScatterPtx), "loading a copy kernel"));
  MR_RETURN_IF_ERROR(
      driver.check(driver.load_module(&gpu.gather_module, kGatherPtx), "loading a copy kernel"));
  MR_RETURN_IF_ERROR(
      driver.check(driver.get_function(&gpu.scatter, gpu.scatter_module, "mr_scatter"),
                   "finding a copy kernel"));
  return driver.check(driver.get_function(&gpu.gather, gpu.gather_module, "mr_gather"),
                      "finding a copy kernel");
}

Result<const CudaCopier::Gpu*> CudaCopier::gpu(const CudaDriver& driver, int32_t device) {
  const auto known = gpus_.find(device);
  if (known != gpus_.end()) return &known->second;
  Gpu gpu;
  if (driver.device_get(&gpu.device, device) != 0) {
    return error(Errc::kUnsupported, "there is no CUDA device {}", device);
  }
  MR_RETURN_IF_ERROR(driver.check(driver.retain_primary_context(&gpu.context, gpu.device),
                                  "the GPU's primary context"));
  if (auto prepared = prepare(driver, gpu); !prepared.ok()) {
    driver.release_primary_context(gpu.device);
    return prepared.error();
  }
  return &gpus_.emplace(device, gpu).first->second;
}

Result<std::unique_ptr<DeviceLane>> CudaCopier::open(int32_t device) {
  MR_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::get());
  const std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(const Gpu* const gpu, this->gpu(*driver, device));
  auto lane = std::make_unique<Lane>(*driver, *gpu);
  MR_RETURN_IF_ERROR(lane->prepare());
  return std::unique_ptr<DeviceLane>(std::move(lane));
}

Result<std::shared_ptr<const DevicePool>> CudaCopier::map(int32_t device, int descriptor,
                                                          int64_t bytes) {
  MR_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::get());
  const std::lock_guard lock(mutex_);
  MR_ASSIGN_OR_RETURN(const Gpu* const gpu, this->gpu(*driver, device));
  const ContextScope scope(*driver, gpu->context);
  MR_RETURN_IF_ERROR(scope.check());
  MR_ASSIGN_OR_RETURN(auto pool, CudaPool::map(*driver, gpu->device, descriptor, bytes));
  return std::shared_ptr<const DevicePool>(std::move(pool));
}

}  // namespace millrace::kvclient
