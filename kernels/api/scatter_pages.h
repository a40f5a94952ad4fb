// SPDX-License-Identifier: Apache-2.0
// Writes pages from contiguous rows of device memory to where they belong there: the reverse of
// gather_pages.h, without checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::kernels {

// Their addresses (4 KiB) are kernel parameters.
inline constexpr int64_t kMaxScatteredPages = 512;

// The first half of page i (its keys) comes from k + i * page_bytes / 2, the second half (its values) from
// v + i * page_bytes / 2. All addresses are multiples of 4, faster of 16, as is half a page.
struct ScatterPagesParams {
  std::span<std::byte* const> pages;  // at most kMaxScatteredPages; read before the call returns
  int64_t page_bytes = 0;             // of one page
  const void* k = nullptr;
  const void* v = nullptr;
};

// The same between host addresses.
void scatter_host_pages(const ScatterPagesParams& params);

}  // namespace millrace::kernels
