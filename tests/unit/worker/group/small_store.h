// SPDX-License-Identifier: Apache-2.0
// A KV store with one layer and one kv head in host memory, for tests of what a group does with a
// store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "kvstore/kv_store.h"

namespace millrace::test {

inline std::unique_ptr<kvstore::KvStore> small_store(const Clock& clock, int64_t num_pages = 4) {
  const kvstore::KvGeometry geometry{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
  auto store = kvstore::make_kv_store(
      {.host_bytes = num_pages * (geometry.page_bytes() + geometry.record_bytes()),
       .geometry = geometry},
      clock);
  MR_CHECK(store.ok(), "{}", store.error().to_string());
  return *std::move(store);
}

// Stores a finished cache of one page under `lease_id`.
inline void hold(kvstore::KvStore& store, const std::string& request_id,
                 const std::string& lease_id, Duration lease) {
  const std::vector<int64_t> pages = {0};
  const std::vector<std::byte> kv(static_cast<size_t>(store.geometry().page_bytes()));
  const std::vector<float> digest(static_cast<size_t>(store.geometry().head_dim));
  const std::vector<float> scores = {1};
  const bool held = store.begin_request(request_id, 64, pages).ok() &&
                    store
                        .write_page(request_id, {.layer = 0, .kv_head = 0, .page = 0}, kv,
                                    {.min = digest, .max = digest, .radius = digest})
                        .ok() &&
                    store.set_scores(request_id, 0, 0, scores).ok() &&
                    store.seal(request_id, lease_id, lease).ok();
  MR_CHECK(held, "request '{}' is not held", request_id);
}

}  // namespace millrace::test
