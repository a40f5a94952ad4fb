#include "worker/staging/page_reader.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "common/checksum.h"
#include "common/system/stream_copy.h"

namespace millrace::worker {

namespace {

// For the device to be through with what is overwritten: a layer's computation, at most.
constexpr auto kLayerTimeout = std::chrono::minutes(5);

}  // namespace

Result<std::unique_ptr<PageReader>> PageReader::create(kernels::Device& device,
                                                       kvstore::KvStore& store, int num_threads) {
  if (device.info().host_memory) num_threads = 0;
  std::unique_ptr<PageReader> reader(new PageReader(store, num_threads));
  for (int i = 0; i < std::max(num_threads, 1); ++i) {
    Workspace workspace{.lane = device.make_copy_lane()};
    if (num_threads > 0) {
      MR_ASSIGN_OR_RETURN(workspace.pages,
                          device.allocate_host(kChunkPages * store.geometry().page_bytes()));
    }
    reader->workspaces_.push_back(std::move(workspace));
  }
  return reader;
}

void PageReader::begin(const CachedLayer& layer) {
  layer_ = layer;
  for (Workspace& workspace : workspaces_) workspace.lane->follow();
  const int64_t num_pages = std::ssize(layer.pages);
  threads_.begin(num_page_chunks(geometry().num_kv_heads, num_pages),
                 [this, num_pages](int thread, int64_t i) {
                   return bring(page_chunk(i, num_pages), workspaces_[static_cast<size_t>(thread)]);
                 });
}

Result<void> PageReader::wait(Deadline deadline) {
  auto done = threads_.wait(deadline);
  if (done.ok() || done.error().code != Errc::kDeadlineExceeded) return done;
  return error(Errc::kDeadlineExceeded, "request '{}': cached layer {} was not read in time: {}",
               layer_.request_id, layer_.layer, done.error().message);
}

Result<void> PageReader::bring(const PageChunk& chunk, Workspace& workspace) {
  const int64_t half_bytes = geometry().page_bytes() / 2;
  const int64_t row_bytes = half_bytes / geometry().page_tokens;
  const int64_t offset = chunk.head * layer_.to.stride * row_bytes + chunk.first * half_bytes;
  auto* to_k = static_cast<std::byte*>(layer_.to.k) + offset;
  auto* to_v = static_cast<std::byte*>(layer_.to.v) + offset;
  const int64_t bytes = chunk.count * half_bytes;
  auto* k = runs_beside() ? workspace.pages.as<std::byte>() : to_k;
  auto* v = runs_beside() ? k + bytes : to_v;
  MR_RETURN_IF_ERROR(with_pages(chunk, [&](int64_t i, const std::byte* page) {
    stream_copy(k + i * half_bytes, page, static_cast<size_t>(half_bytes));
    stream_copy(v + i * half_bytes, page + half_bytes, static_cast<size_t>(half_bytes));
  }));
  if (!runs_beside()) return {};
  for (const auto& [from, to] : {std::pair{k, to_k}, std::pair{v, to_v}}) {
    workspace.lane->copy_rows(
        {.destination = to, .source = from, .row_bytes = bytes, .num_rows = 1});
  }
  return workspace.lane->synchronize(Deadline::after(kLayerTimeout));
}

// Pages on disk take memory while they are pinned. Where it does not suffice for those of all
// threads, it does for one chunk's, once the others have let go of theirs.
template <typename Use>
Result<void> PageReader::with_pages(const PageChunk& chunk, const Use& use) {
  {
    const std::shared_lock together(pins_);
    auto used = pin_and_use(chunk, use);
    if (used.ok() || used.error().code != Errc::kExhausted) return used;
  }
  const std::unique_lock alone(pins_);
  return pin_and_use(chunk, use);
}

template <typename Use>
Result<void> PageReader::pin_and_use(const PageChunk& chunk, const Use& use) {
  const auto pages =
      layer_.pages.subspan(static_cast<size_t>(chunk.first), static_cast<size_t>(chunk.count));
  MR_ASSIGN_OR_RETURN(const auto pinned,
                      store_.pin_prefix(layer_.request_id, layer_.layer,
                                        geometry().first_kv_head + chunk.head, pages));
  MR_RETURN_IF_ERROR(pinned->load());
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto& page = pinned->pages()[i];
    use(static_cast<int64_t>(i), page.bytes.data());
    if (checksum(page.bytes) == page.checksum) continue;  // from the core's caches
    return error(
        Errc::kCorrupt,
        "request '{}': layer {} kv head {} page {} in {} memory has not the checksum it was "
        "written with",
        layer_.request_id, layer_.layer, geometry().first_kv_head + chunk.head, pages[i],
        tier_name(page.tier));
  }
  return {};
}

}  // namespace millrace::worker
