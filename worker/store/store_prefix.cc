#include "worker/store/store_prefix.h"

#include <algorithm>
#include <utility>

namespace millrace::worker {

namespace {

// For what the device was given before, where the memory to read into is short.
constexpr auto kDeviceTimeout = std::chrono::minutes(5);
// Of a head, pinned and read at a time: 4 MiB at 32 KiB a page.
constexpr int64_t kPagesAtOnce = 128;

}  // namespace

StorePrefix::StorePrefix(kernels::Device& device, kvstore::KvStore& store, std::string request_id,
                         std::vector<int64_t> pages)
    : device_(device),
      store_(store),
      request_id_(std::move(request_id)),
      pages_(std::move(pages)) {}

Result<void> StorePrefix::load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) {
  const auto pages =
      std::span(pages_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  const auto& geometry = store_.geometry();
  const int64_t half_bytes = geometry.page_bytes() / 2;
  const int64_t head_bytes = to.stride * half_bytes / geometry.page_tokens;
  for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
    for (int64_t at = 0; at < count; at += kPagesAtOnce) {
      const int64_t offset = head * head_bytes + at * half_bytes;
      const auto some = pages.subspan(static_cast<size_t>(at),
                                      static_cast<size_t>(std::min(kPagesAtOnce, count - at)));
      MR_RETURN_IF_ERROR(load_head(layer, geometry.first_kv_head + head, some,
                                   {.k = static_cast<std::byte*>(to.k) + offset,
                                    .v = static_cast<std::byte*>(to.v) + offset}));
    }
  }
  return {};
}

Result<void> StorePrefix::load_head(int32_t layer, int32_t head, std::span<const int64_t> pages,
                                    const KvPlace& to) {
  MR_ASSIGN_OR_RETURN(auto pinned, store_.pin_prefix(request_id_, layer, head, pages));
  MR_RETURN_IF_ERROR(read(*pinned));
  const int64_t half_bytes = store_.geometry().page_bytes() / 2;
  int64_t offset = 0;
  for (const auto& page : pinned->pages()) {
    device_.copy(static_cast<std::byte*>(to.k) + offset, page.bytes.data(), half_bytes);
    device_.copy(static_cast<std::byte*>(to.v) + offset, page.bytes.data() + half_bytes,
                 half_bytes);
    offset += half_bytes;
  }
  // A device whose memory is the host's has copied by now.
  if (!device_.info().host_memory) pinned_.push_back({layer, std::move(pinned)});
  return {};
}

Result<void> StorePrefix::read(kvstore::PinnedPages& pages) {
  auto read = pages.load();
  if (read.ok() || read.error().code != Errc::kExhausted || pinned_.empty()) return read;
  MR_RETURN_IF_ERROR(device_.synchronize(Deadline::after(kDeviceTimeout)));
  pinned_.clear();
  return pages.load();
}

void StorePrefix::done_with(int32_t layer) {
  while (!pinned_.empty() && pinned_.front().layer <= layer) pinned_.pop_front();
}

}  // namespace millrace::worker
