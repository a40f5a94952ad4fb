// SPDX-License-Identifier: Apache-2.0
// Gathers pages that are scattered over host or device memory into contiguous rows of device memory, and
// verifies the checksum of each on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace millrace::kernels {

struct SourcePage {
  // 16-byte aligned. Memory of the device, or host memory that Device::lock_host has locked.
  const std::byte* bytes = nullptr;
  uint64_t checksum = 0;  // common/checksum.h
};

// 8 MiB of 16 KiB pages. Their addresses and checksums (8 KiB) are kernel parameters, which may take up to
// 32 KiB (CUDA 12.1 and up, compute capability 7.0 and up).
inline constexpr int64_t kMaxGatheredPages = 512;

// The first half of page i (its keys) goes to k + i * page_bytes / 2, the second half (its values) to
// v + i * page_bytes / 2.
struct GatherPagesParams {
  std::span<const SourcePage> pages;  // at most kMaxGatheredPages; read before the call returns
  int64_t page_bytes = 0;             // of one page; on a GPU a multiple of 1 KiB, at most 64 KiB
  void* k = nullptr;
  void* v = nullptr;
  // How many of the pages are in memory of the device: they can come faster than over a bus.
  int64_t num_in_device = 0;
};

// The same between host addresses. Returns the number of a page that does not match its checksum, if there is
// one.
std::optional<int64_t> gather_host_pages(const GatherPagesParams& params);

}  // namespace millrace::kernels
