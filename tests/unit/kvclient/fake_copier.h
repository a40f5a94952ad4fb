// SPDX-License-Identifier: Apache-2.0
// Devices whose memory is this process's own: a copier that counts, and fails on demand. Only
// device 3 exists.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "common/system/file_descriptor.h"
#include "common/system/shared_memory_view.h"
#include "kvclient/device/device_copier.h"

namespace millrace::test {

class FakeCopier final : public kvclient::DeviceCopier {
 public:
  // Called by each scatter and gather before it writes. If it returns an error, the call fails with
  // it.
  using Hook = std::function<Result<void>()>;
  explicit FakeCopier(Hook hook = {}) : hook_(std::move(hook)) {}

  Result<std::unique_ptr<kvclient::DeviceLane>> open(int32_t device) override {
    if (device != 3) return error(Errc::kUnsupported, "there is no device {}", device);
    ++opened;
    return std::unique_ptr<kvclient::DeviceLane>(std::make_unique<Lane>(*this));
  }
  // `descriptor`: a memfd, as that of SharedDeviceSlots.
  Result<std::shared_ptr<const kvclient::DevicePool>> map(int32_t device, int descriptor,
                                                          int64_t num_bytes) override {
    ++asked_to_map;
    if (!reaches_pools) return error(Errc::kUnsupported, "device {} reaches no other", device);
    MR_ASSIGN_OR_RETURN(auto view, SharedMemoryView::map(FileDescriptor(::dup(descriptor))));
    MR_CHECK(std::ssize(view.bytes()) == num_bytes, "a pool of {} bytes", num_bytes);
    return std::shared_ptr<const kvclient::DevicePool>(
        std::make_shared<Pool>(std::move(view), pools_mapped));
  }

  std::atomic<int64_t> bytes = 0;     // bytes written
  std::atomic<int64_t> gathered = 0;  // of these, gathered from pools
  std::atomic<int> opened = 0;
  std::atomic<int> writing = 0;
  std::atomic<int> asked_to_map = 0;
  std::atomic<bool> reaches_pools = true;
  // Its waiters are notified when a mapping ends.
  std::shared_ptr<std::atomic<int>> pools_mapped = std::make_shared<std::atomic<int>>(0);

 private:
  class Pool final : public kvclient::DevicePool {
   public:
    Pool(SharedMemoryView of, std::shared_ptr<std::atomic<int>> count)
        : DevicePool(std::ssize(of.bytes())), view(std::move(of)), count_(std::move(count)) {
      ++*count_;
    }
    ~Pool() override {
      --*count_;
      count_->notify_all();
    }
    const SharedMemoryView view;

   private:
    const std::shared_ptr<std::atomic<int>> count_;
  };

  class Lane final : public kvclient::DeviceLane {
   public:
    explicit Lane(FakeCopier& copier) : copier_(copier) {}

    Result<std::span<std::byte>> staging(int64_t bytes) override {
      memory_.resize(std::max(memory_.size(), static_cast<size_t>(bytes)));
      return std::span(memory_);
    }
    Result<void> scatter(int64_t bytes, std::span<const kvclient::DevicePiece> pieces) override {
      return write([&] { copy(std::span(memory_).first(static_cast<size_t>(bytes)), pieces); });
    }
    Result<std::vector<bool>> gather(const kvclient::DevicePool& pool, int64_t page_bytes,
                                     std::span<const kvclient::PooledPage> pages,
                                     std::span<const kvclient::DevicePiece> pieces) override {
      const auto from = dynamic_cast<const Pool&>(pool).view.bytes();
      std::vector<bool> right;
      MR_RETURN_IF_ERROR(write([&] {
        for (const auto& page : pages) {
          const auto bytes = from.subspan(page.offset, static_cast<size_t>(page_bytes));
          right.push_back(checksum(bytes) == page.checksum);
          if (!right.back()) continue;
          copier_.gathered += copy(bytes, pieces.subspan(page.first_piece, page.num_pieces));
        }
      }));
      return right;
    }

   private:
    template <typename Write>
    Result<void> write(const Write& write) {
      ++copier_.writing;
      auto told = copier_.hook_ ? copier_.hook_() : Result<void>();
      if (told.ok()) write();
      --copier_.writing;
      return told;
    }
    // Returns the number of bytes.
    int64_t copy(std::span<const std::byte> from, std::span<const kvclient::DevicePiece> pieces) {
      int64_t copied = 0;
      for (const auto& piece : pieces) {
        MR_CHECK(piece.from + piece.bytes <= from.size(), "a piece of what is not there");
        std::memcpy(piece.to, from.data() + piece.from, piece.bytes);
        copied += piece.bytes;
      }
      copier_.bytes += copied;
      return copied;
    }

    FakeCopier& copier_;
    std::vector<std::byte> memory_;
  };

  const Hook hook_;
};

}  // namespace millrace::test
