// SPDX-License-Identifier: Apache-2.0
// Pins the pages of a prompt's cached prefix for the threads of a PageReader.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/result.h"
#include "kvstore/cached_pages.h"

namespace millrace::worker {

class PrefixPins {
 public:
  virtual ~PrefixPins() = default;

  virtual const std::string& request_id() const = 0;
  // As CachedPages::pin_prefix. `pages`: numbers of the prompt's pages, ascending. `kv_head`: in the
  // model. Any thread.
  virtual Result<std::unique_ptr<kvstore::PinnedPages>> pin(int32_t layer, int32_t kv_head,
                                                            std::span<const int64_t> pages) = 0;
};

// Pins pages of a request in this rank's store, which outlives this object.
class StorePins final : public PrefixPins {
 public:
  StorePins(kvstore::CachedPages& store, std::string request_id)
      : store_(store), request_id_(std::move(request_id)) {}

  const std::string& request_id() const override { return request_id_; }
  Result<std::unique_ptr<kvstore::PinnedPages>> pin(int32_t layer, int32_t kv_head,
                                                    std::span<const int64_t> pages) override {
    return store_.pin_prefix(request_id_, layer, kv_head, pages);
  }

 private:
  kvstore::CachedPages& store_;
  const std::string request_id_;
};

}  // namespace millrace::worker
