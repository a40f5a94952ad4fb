// SPDX-License-Identifier: Apache-2.0
// A cached page, with what an event about it needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/content/page_keys.h"
#include "common/page_tokens.h"

namespace millrace::worker {

struct StoredPage {
  PageContentKey key{};
  std::optional<PageContentKey> parent;  // of the page before it; none: it begins the prompt
  std::array<int32_t, static_cast<size_t>(kPageTokens)> token_ids{};
  std::string cache_salt;  // the request's, where it begins the prompt

  bool operator==(const StoredPage&) const = default;
};

}  // namespace millrace::worker
