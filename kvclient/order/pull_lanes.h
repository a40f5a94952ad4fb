// SPDX-License-Identifier: Apache-2.0
// What a pull takes from each rank: runs of the prompt's pages by kv head, the same for each layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvclient/manifest/manifest.h"

namespace millrace::kvclient {

// The part of a cache that is pulled.
struct PullPart {
  int32_t first_layer = 0;
  int64_t num_layers = 0;
  int32_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
};

struct PageSpan {
  int32_t kv_head = 0;  // of the model
  int64_t first_page = 0;
  int64_t num_pages = 0;
};

struct PullLane {
  std::string address;
  int shard = 0;                // of the manifest
  std::vector<PageSpan> spans;  // by kv head, then by page
};

// `part` must lie in the manifest, which has passed check_manifest.
std::vector<PullLane> pull_lanes(const PullPart& part, const Manifest& manifest);
// The pages that a rank holds, ascending: those of its token ranges.
std::vector<int64_t> pages_of(const Shard& shard, int64_t page_tokens);

}  // namespace millrace::kvclient
