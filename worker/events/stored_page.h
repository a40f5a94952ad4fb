// SPDX-License-Identifier: Apache-2.0
// A cached page, with what routers and the coordinator are told of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/content/page_keys.h"

namespace millrace::worker {

struct StoredPage {
  PageContentKey key{};
  std::optional<PageContentKey> parent;  // of the page before it; none: it begins the prompt
  // The name that a coordinator has for the beginning of the prompt up to this page
  // (common/content/prefix_keys.h, stored_prefix_key); 0: it has none for most pages.
  uint64_t prefix_key = 0;
  std::vector<int32_t> token_ids;  // of the page; empty where no events are made
  std::string cache_salt;          // the request's, where it begins the prompt

  bool operator==(const StoredPage&) const = default;
};

}  // namespace millrace::worker
