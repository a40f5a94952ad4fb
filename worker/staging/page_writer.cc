// SPDX-License-Identifier: Apache-2.0
#include "worker/staging/page_writer.h"

#include <algorithm>
#include <cstring>

namespace millrace::worker {

namespace {

// For a layer to be computed, and for one chunk to be copied: more than a working device needs.
constexpr auto kLayerTimeout = std::chrono::minutes(5);
constexpr auto kCopyTimeout = std::chrono::seconds(60);

constexpr int64_t kFloatBytes = sizeof(float);

// 4 MiB: a copy of that size runs at the full speed of the bus, and a layer of 32,768 tokens and 8
// heads of 128 dimensions in 16 bits still keeps eight threads busy.
int64_t pages_of_chunk(const kvstore::KvGeometry& geometry) {
  return std::max<int64_t>(1, (4 << 20) / geometry.page_bytes());
}

}  // namespace

Result<std::unique_ptr<PageWriter>> PageWriter::create(kernels::Device& device,
                                                       kvstore::RequestWriter& store,
                                                       const kvstore::KvGeometry& geometry,
                                                       int num_threads) {
  if (device.info().host_memory) num_threads = 0;
  std::unique_ptr<PageWriter> writer(new PageWriter(store, geometry, num_threads));
  for (int i = 0; i < std::max(num_threads, 1); ++i) {
    Workspace workspace{.lane = device.make_copy_lane()};
    const int64_t chunk_pages = pages_of_chunk(geometry);
    MR_ASSIGN_OR_RETURN(workspace.pages, device.allocate_host(chunk_pages * geometry.page_bytes()));
    MR_ASSIGN_OR_RETURN(workspace.digests,
                        device.allocate_host(3 * chunk_pages * geometry.head_dim * kFloatBytes));
    writer->workspaces_.push_back(std::move(workspace));
  }
  return writer;
}

void PageWriter::begin(const StagedLayer& layer) {
  layer_ = layer;
  bytes_written_ = 0;
  for (Workspace& workspace : workspaces_) workspace.lane->follow();
  const PageChunks chunks(layer.kv.num_kv_heads, std::ssize(layer.pages),
                          pages_of_chunk(geometry_));
  threads_.begin(chunks.count(),
                 [this, number = ++num_begun_, chunks](int thread, int64_t i) -> Result<void> {
                   Workspace& workspace = workspaces_[static_cast<size_t>(thread)];
                   const auto chunk = chunks[i];
                   MR_RETURN_IF_ERROR(wait_for_layer(number, workspace));
                   MR_RETURN_IF_ERROR(read_chunk(chunk, workspace));
                   return write_chunk(chunk, workspace);
                 });
}

Result<void> PageWriter::wait(Deadline deadline) {
  auto done = threads_.wait(deadline);
  if (done.ok() || done.error().code != Errc::kDeadlineExceeded) return done;
  return error(Errc::kDeadlineExceeded, "request '{}': layer {} was not stored in time: {}",
               layer_.request_id, layer_.layer, done.error().message);
}

// One thread asks the device, and the others wait for that thread. Most of a layer's time goes by
// meanwhile, and the engine's thread has the driver to itself to enqueue the next layer.
Result<void> PageWriter::wait_for_layer(int64_t number, Workspace& workspace) {
  const std::lock_guard lock(arrival_mutex_);
  if (num_arrived_ == number) return {};
  MR_RETURN_IF_ERROR(workspace.lane->synchronize(Deadline::after(kLayerTimeout)));
  num_arrived_ = number;
  return {};
}

// Stripes are whole pages except at the prompt's end, so the rank's i-th page has its rows
// [64 i, 64 i + 64). Only the last page may be short; it is filled up with zeros.
void PageWriter::read_half(const PageChunk& chunk, const void* rows, std::byte* pages,
                           Workspace& workspace) const {
  const int64_t page_bytes = geometry_.page_bytes();
  const int64_t half_bytes = page_bytes / 2;
  const int64_t row_bytes = half_bytes / geometry_.page_tokens;
  const int64_t begin = chunk.first * half_bytes;
  const int64_t bytes = std::min(chunk.count * half_bytes, layer_.kv.num_rows * row_bytes - begin);
  const auto* from =
      static_cast<const std::byte*>(rows) + chunk.head * layer_.kv.head_rows() * row_bytes + begin;
  const int64_t num_whole = bytes / half_bytes;
  workspace.lane->copy_rows({.destination = pages,
                             .destination_stride_bytes = page_bytes,
                             .source = from,
                             .source_stride_bytes = half_bytes,
                             .row_bytes = half_bytes,
                             .num_rows = num_whole});
  const int64_t rest_bytes = bytes % half_bytes;
  if (rest_bytes == 0) return;
  std::byte* last = pages + num_whole * page_bytes;
  workspace.lane->copy_rows({.destination = last,
                             .source = from + num_whole * half_bytes,
                             .row_bytes = rest_bytes,
                             .num_rows = 1});
  std::memset(last + rest_bytes, 0, static_cast<size_t>(half_bytes - rest_bytes));
}

Result<void> PageWriter::read_chunk(const PageChunk& chunk, Workspace& workspace) {
  auto* pages = workspace.pages.as<std::byte>();
  read_half(chunk, layer_.kv.k, pages, workspace);
  read_half(chunk, layer_.kv.v, pages + geometry_.page_bytes() / 2, workspace);
  const int64_t row_bytes = geometry_.head_dim * kFloatBytes;
  const int64_t num_pages = std::ssize(layer_.pages);
  workspace.lane->copy_rows(
      {.destination = workspace.digests.as<float>(),
       .destination_stride_bytes = chunk.count * row_bytes,
       .source = layer_.digests + (chunk.head * 3 * num_pages + chunk.first) * geometry_.head_dim,
       .source_stride_bytes = num_pages * row_bytes,
       .row_bytes = chunk.count * row_bytes,
       .num_rows = 3});
  return workspace.lane->synchronize(Deadline::after(kCopyTimeout));
}

// Not from the device: a last page that is short, which is filled up on the host only.
Result<void> PageWriter::write_chunk(const PageChunk& chunk, const Workspace& workspace) {
  const int64_t half_bytes = geometry_.page_bytes() / 2;
  const int64_t row_bytes = half_bytes / geometry_.page_tokens;
  const int64_t begin = chunk.head * layer_.kv.head_rows() * row_bytes + chunk.first * half_bytes;
  const kvstore::DeviceHalves rows{.k = static_cast<const std::byte*>(layer_.kv.k) + begin,
                                   .v = static_cast<const std::byte*>(layer_.kv.v) + begin};
  const int64_t num_whole =
      std::min(chunk.count, layer_.kv.num_rows / geometry_.page_tokens - chunk.first);
  if (num_whole > 0) MR_RETURN_IF_ERROR(write_part(chunk, 0, num_whole, rows, workspace));
  if (num_whole == chunk.count) return {};
  return write_part(chunk, num_whole, chunk.count - num_whole, {}, workspace);
}

Result<void> PageWriter::write_part(const PageChunk& chunk, int64_t first, int64_t count,
                                    const kvstore::DeviceHalves& from, const Workspace& workspace) {
  const int64_t page_bytes = geometry_.page_bytes();
  const auto num_bytes = static_cast<size_t>(count * page_bytes);
  const auto digests = [&](int64_t kind) {
    return std::span(
        workspace.digests.as<const float>() + (kind * chunk.count + first) * geometry_.head_dim,
        static_cast<size_t>(count * geometry_.head_dim));
  };
  const auto pages =
      std::span(layer_.pages)
          .subspan(static_cast<size_t>(chunk.first + first), static_cast<size_t>(count));
  MR_RETURN_IF_ERROR(store_.write_pages(
      layer_.request_id, layer_.layer, geometry_.first_kv_head + chunk.head, pages,
      {workspace.pages.as<const std::byte>() + first * page_bytes, num_bytes},
      {.min = digests(0), .max = digests(1), .radius = digests(2)}, from));
  bytes_written_ += static_cast<int64_t>(num_bytes);
  return {};
}

}  // namespace millrace::worker
