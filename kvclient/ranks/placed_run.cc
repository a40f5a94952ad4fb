// SPDX-License-Identifier: Apache-2.0
#include "kvclient/ranks/placed_run.h"

namespace millrace::kvclient {

std::vector<PlacedRun> PlacedRun::parts(std::span<const size_t> places) const {
  std::vector<PlacedRun> parts;
  for (const size_t place : places) {
    const int64_t page = run.page(static_cast<int64_t>(place));
    const bool joins =
        !parts.empty() &&
        (!run.named.empty() || parts.back().run.first_page + parts.back().run.num_pages == page);
    if (!joins) {
      parts.push_back({.run = {.layer = run.layer,
                               .kv_head = run.kv_head,
                               .first_page = page,
                               .num_pages = 0,
                               .named = {}},
                       .pages = {}});
    }
    PlacedRun& part = parts.back();
    ++part.run.num_pages;
    if (!run.named.empty()) part.run.named.push_back(page);
    if (!pages.empty()) part.pages.push_back(pages[place]);
  }
  return parts;
}

}  // namespace millrace::kvclient
