// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/prompt_pages.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace::worker {

namespace {

std::vector<int64_t> numbers_of(std::span<const kvstore::CachedPage> pages) {
  std::vector<int64_t> numbers;
  for (const auto& cached : pages) numbers.push_back(cached.page);
  return numbers;
}

}  // namespace

PromptPages::PromptPages(kernels::Device& device, kvstore::KvStore& store, PageWriter& writer,
                         PageReader& reader, std::string request_id, std::vector<int64_t> pages,
                         std::vector<kvstore::CachedPage> prefix)
    : store_(store),
      request_id_(std::move(request_id)),
      pages_(std::move(pages)),
      prefix_(std::move(prefix)),
      pins_(store, request_id_) {
  prefix_source_.emplace(device, reader, pins_, numbers_of(prefix_));
  sink_.emplace(device, store, writer, request_id_, pages_, numbers_of(prefix_));
}

PromptPages::~PromptPages() {
  // These stop all reads and writes of the pages.
  prefix_source_.reset();
  sink_.reset();
  if (forgets_) store_.abort(request_id_);
}

Result<void> PromptPages::begin(int64_t num_tokens) {
  MR_RETURN_IF_ERROR(store_.begin_request(request_id_, num_tokens, pages_, prefix_));
  forgets_ = true;
  return {};
}

Result<void> PromptPages::open(const std::string& lease_id) {
  return store_.open(request_id_, lease_id);
}

Result<void> PromptPages::settle() {
  MR_RETURN_IF_ERROR(prefix_source_->settle());
  return sink_->settle();
}

Result<void> PromptPages::drop_all_but(const KeptPages& kept) {
  const auto& geometry = store_.geometry();
  const auto held = numbers();
  std::vector<int64_t> dropped;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
      const int32_t head = geometry.first_kv_head + h;
      dropped.clear();
      std::ranges::copy_if(held, std::back_inserter(dropped),
                           [&](int64_t page) { return !kept.has(layer, head, page); });
      MR_RETURN_IF_ERROR(store_.drop_pages(request_id_, layer, head, dropped));
    }
  }
  return {};
}

Result<kvstore::Placement> PromptPages::seal(const std::string& lease_id, Duration lease) {
  return store_.seal(request_id_, lease_id, lease);
}

std::vector<int64_t> PromptPages::numbers() const {
  auto numbers = numbers_of(prefix_);
  numbers.insert(numbers.end(), pages_.begin(), pages_.end());
  return numbers;
}

Result<void> PromptPages::remember(std::span<const PageContentKey> keys, double cost,
                                   std::shared_ptr<const kvstore::CachedPrompt> prompt) {
  std::vector<kvstore::CachedPage> named;
  for (const int64_t page : pages_) {
    if (page >= std::ssize(keys)) break;
    named.push_back({.page = page, .key = keys[static_cast<size_t>(page)]});
  }
  const auto known = store_.remember(request_id_, named, cost, std::move(prompt));
  return known.status();
}

}  // namespace millrace::worker
