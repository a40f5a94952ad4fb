// Pages that lie anywhere in host or device memory, brought to rows in device memory, each compared with its
// checksum on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace millrace::kernels {

struct SourcePage {
  // 16-byte aligned; the device's own memory, or the host's that Device::lock_host has locked.
  const std::byte* bytes = nullptr;
  uint64_t checksum = 0;  // common/checksum.h
};

// 8 MiB of 16 KiB pages. Their addresses and checksums, 8 KiB, travel with the launch of a kernel, whose
// parameters may have 32 KiB (CUDA 12.1 and up, compute capability 7.0 and up).
inline constexpr int64_t kMaxGatheredPages = 512;

// The first half of page i (its keys) goes to k + i * page_bytes / 2, the second to v + the same.
struct GatherPagesParams {
  std::span<const SourcePage> pages;  // kMaxGatheredPages at most; read before the call returns
  int64_t page_bytes = 0;             // of each; on a GPU whole KiB, up to 64
  void* k = nullptr;
  void* v = nullptr;
};

// The same between host addresses: one of the pages that do not match their checksum, if any do not.
std::optional<int64_t> gather_host_pages(const GatherPagesParams& params);

}  // namespace millrace::kernels
