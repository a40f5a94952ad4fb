// SPDX-License-Identifier: Apache-2.0
#include "worker/staging/page_reader.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "common/checksum.h"
#include "common/log.h"
#include "common/system/stream_copy.h"

namespace millrace::worker {

namespace {

// For the device to finish with the memory that is overwritten: one layer's computation at most.
constexpr auto kLayerTimeout = std::chrono::minutes(5);

// 8 MiB, one launch of the kernel that gathers. With 4 MiB the first token behind 131,072 cached
// ones takes 5 to 8 % longer (docs/notebook/prefix-on-gpus.md).
int64_t pages_of_chunk(const kvstore::KvGeometry& geometry) {
  return std::clamp((8 << 20) / geometry.page_bytes(), int64_t{1}, kernels::kMaxGatheredPages);
}

}  // namespace

Result<std::unique_ptr<PageReader>> PageReader::create(kernels::Device& device,
                                                       const kvstore::KvGeometry& geometry,
                                                       int num_threads) {
  if (device.info().host_memory) num_threads = 0;
  std::unique_ptr<PageReader> reader(new PageReader(geometry, num_threads));
  for (int i = 0; i < std::max(num_threads, 1); ++i) {
    Workspace workspace{.lane = device.make_copy_lane()};
    if (num_threads > 0) {
      MR_ASSIGN_OR_RETURN(workspace.pages,
                          device.allocate_host(pages_of_chunk(geometry) * geometry.page_bytes()));
    }
    reader->workspaces_.push_back(std::move(workspace));
  }
  return reader;
}

void PageReader::begin(const CachedLayer& layer) {
  layer_ = layer;
  for (Workspace& workspace : workspaces_) workspace.lane->follow();
  const PageChunks chunks(geometry().num_kv_heads, std::ssize(layer.pages),
                          pages_of_chunk(geometry()));
  threads_.begin(chunks.count(), [this, chunks](int thread, int64_t i) {
    return bring(chunks[i], workspaces_[static_cast<size_t>(thread)]);
  });
}

Result<void> PageReader::wait(Deadline deadline) {
  auto done = threads_.wait(deadline);
  if (done.ok() || done.error().code != Errc::kDeadlineExceeded) return done;
  return error(Errc::kDeadlineExceeded, "request '{}': cached layer {} was not read in time: {}",
               layer_.pins->request_id(), layer_.layer, done.error().message);
}

engine::KvPlace PageReader::destination(const PageChunk& chunk) const {
  const int64_t half_bytes = geometry().page_bytes() / 2;
  const int64_t row_bytes = half_bytes / geometry().page_tokens;
  const int64_t offset = chunk.head * layer_.to.stride * row_bytes + chunk.first * half_bytes;
  return {.k = static_cast<std::byte*>(layer_.to.k) + offset,
          .v = static_cast<std::byte*>(layer_.to.v) + offset,
          .stride = layer_.to.stride};
}

Result<void> PageReader::bring(const PageChunk& chunk, Workspace& workspace) {
  const Stopwatch stopwatch;
  PerTier<int64_t> num_pages;
  MR_RETURN_IF_ERROR(bring_pages(chunk, workspace, num_pages));
  const double page_s = stopwatch.elapsed_s() / static_cast<double>(chunk.count);
  const std::lock_guard lock(loads_mutex_);
  for (const Tier tier : kTiers) {
    loads_[tier].bytes += num_pages[tier] * geometry().page_bytes();
    loads_[tier].seconds += static_cast<double>(num_pages[tier]) * page_s;
  }
  return {};
}

PerTier<kvstore::ReadTotals> PageReader::loads() const {
  const std::lock_guard lock(loads_mutex_);
  return loads_;
}

Result<void> PageReader::bring_pages(const PageChunk& chunk, Workspace& workspace,
                                     PerTier<int64_t>& num_pages) {
  auto& lane = *workspace.lane;
  const auto to = destination(chunk);
  const int64_t bytes = chunk.count * geometry().page_bytes() / 2;
  const engine::KvPlace staged{.k = workspace.pages.as<std::byte>(),
                               .v = workspace.pages.as<std::byte>() + bytes};
  bool gathered = false;
  MR_RETURN_IF_ERROR(with_pages(chunk, lane, [&](Pages pages, bool in_reach) {
    for (const auto& page : pages) ++num_pages[page.tier];
    gathered = in_reach;
    if (gathered) return gather(chunk, pages, lane);
    return copy(chunk, pages, runs_beside() ? staged : to);
  }));
  if (gathered || !runs_beside()) return {};
  for (const auto& [from, rows] : {std::pair{staged.k, to.k}, std::pair{staged.v, to.v}}) {
    lane.copy_rows({.destination = rows, .source = from, .row_bytes = bytes, .num_rows = 1});
  }
  return lane.synchronize(Deadline::after(kLayerTimeout));
}

bool PageReader::reaches(const kernels::CopyLane& lane, const kvstore::PinnedPage& page) {
  return page.device_bytes != nullptr || lane.reaches(page.bytes);
}

bool PageReader::reached(Pages pages, const kernels::CopyLane& lane) {
  if (!runs_beside()) return false;
  const auto away =
      std::ranges::find_if(pages, [&](const auto& page) { return !reaches(lane, page); });
  if (away == pages.end()) return true;
  if (away->tier == Tier::kHost && !told_.exchange(true)) {
    log::info(
        "request '{}': cached pages take the slower way, the host pool is not page-locked, or not "
        "yet",
        layer_.pins->request_id());
  }
  return false;
}

// The pages stay pinned until the device has read them.
Result<void> PageReader::gather(const PageChunk& chunk, Pages pages, kernels::CopyLane& lane) {
  std::array<kernels::SourcePage, kernels::kMaxGatheredPages> table;
  std::ranges::transform(pages, table.begin(), [](const auto& page) {
    return kernels::SourcePage{
        .bytes = page.device_bytes != nullptr ? page.device_bytes : page.bytes.data(),
        .checksum = page.checksum};
  });
  const auto to = destination(chunk);
  lane.gather_pages({.pages = std::span(table).first(pages.size()),
                     .page_bytes = geometry().page_bytes(),
                     .k = to.k,
                     .v = to.v,
                     .num_in_device = std::ranges::count_if(
                         pages, [](const auto& page) { return page.device_bytes != nullptr; })});
  MR_RETURN_IF_ERROR(lane.synchronize(Deadline::after(kLayerTimeout)));
  const auto page = lane.damaged_page();
  if (!page) return {};
  return damaged(chunk, pages, static_cast<size_t>(*page));
}

Result<void> PageReader::copy(const PageChunk& chunk, Pages pages,
                              const engine::KvPlace& to) const {
  const auto half_bytes = static_cast<size_t>(geometry().page_bytes() / 2);
  for (size_t i = 0; i < pages.size(); ++i) {
    const std::byte* const bytes = pages[i].bytes.data();
    stream_copy(static_cast<std::byte*>(to.k) + i * half_bytes, bytes, half_bytes);
    stream_copy(static_cast<std::byte*>(to.v) + i * half_bytes, bytes + half_bytes, half_bytes);
    if (checksum(pages[i].bytes) != pages[i].checksum)
      return damaged(chunk, pages, i);  // checksum read from the core's caches
  }
  return {};
}

Error PageReader::damaged(const PageChunk& chunk, Pages pages, size_t page) const {
  return error(Errc::kCorrupt,
               "request '{}': layer {} kv head {} page {} in {} memory has not the checksum it was "
               "written with",
               layer_.pins->request_id(), layer_.layer, geometry().first_kv_head + chunk.head,
               layer_.pages[static_cast<size_t>(chunk.first) + page], tier_name(pages[page].tier));
}

// Pages on disk take memory while they are pinned. Where there is not enough for the pages of all
// threads, there is enough for one chunk once the other threads have unpinned theirs.
template <typename Use>
Result<void> PageReader::with_pages(const PageChunk& chunk, const kernels::CopyLane& lane,
                                    const Use& use) {
  {
    const std::shared_lock together(pins_);
    auto used = pin_and_use(chunk, lane, use);
    if (used.ok() || used.error().code != Errc::kExhausted) return used;
  }
  const std::unique_lock alone(pins_);
  return pin_and_use(chunk, lane, use);
}

template <typename Use>
Result<void> PageReader::pin_and_use(const PageChunk& chunk, const kernels::CopyLane& lane,
                                     const Use& use) {
  const auto pages =
      layer_.pages.subspan(static_cast<size_t>(chunk.first), static_cast<size_t>(chunk.count));
  MR_ASSIGN_OR_RETURN(const auto pinned,
                      layer_.pins->pin(layer_.layer, geometry().first_kv_head + chunk.head, pages));
  const bool in_reach = reached(pinned->pages(), lane);
  if (!in_reach) MR_RETURN_IF_ERROR(pinned->load());
  return use(pinned->pages(), in_reach);
}

}  // namespace millrace::worker
