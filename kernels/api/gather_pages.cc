// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/gather_pages.h"

#include <cstring>

#include "common/checksum.h"

namespace millrace::kernels {

std::optional<int64_t> gather_host_pages(const GatherPagesParams& params) {
  const auto half_bytes = static_cast<size_t>(params.page_bytes / 2);
  std::optional<int64_t> damaged;
  for (size_t i = 0; i < params.pages.size(); ++i) {
    const SourcePage& page = params.pages[i];
    std::memcpy(static_cast<std::byte*>(params.k) + i * half_bytes, page.bytes, half_bytes);
    std::memcpy(static_cast<std::byte*>(params.v) + i * half_bytes, page.bytes + half_bytes,
                half_bytes);
    if (checksum({page.bytes, 2 * half_bytes}) != page.checksum) damaged = static_cast<int64_t>(i);
  }
  return damaged;
}

}  // namespace millrace::kernels
