#include "worker/store/page_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/units.h"

namespace millrace::worker {

namespace {

// 4 MiB at 32 KiB a page: a copy of that size runs at the full speed of the bus, and a layer of
// 32,768 tokens and 8 heads still keeps eight threads busy.
constexpr int64_t kChunkPages = 128;

// For a layer to be computed, and for one chunk's copy: more than any working device needs.
constexpr auto kLayerTimeout = std::chrono::minutes(5);
constexpr auto kCopyTimeout = std::chrono::seconds(60);

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

Result<std::unique_ptr<PageWriter>> PageWriter::create(kernels::Device& device,
                                                       kvstore::KvStore& store,
                                                       const kvstore::KvGeometry& geometry,
                                                       int num_threads) {
  std::unique_ptr<PageWriter> writer(new PageWriter(store, geometry));
  if (device.info().host_memory) num_threads = 0;
  for (int i = 0; i < std::max(num_threads, 1); ++i) {
    Workspace workspace{.lane = device.make_copy_lane()};
    MR_ASSIGN_OR_RETURN(workspace.pages, device.allocate_host(kChunkPages * geometry.page_bytes()));
    MR_ASSIGN_OR_RETURN(workspace.digests,
                        device.allocate_host(3 * kChunkPages * geometry.head_dim * kFloatBytes));
    writer->workspaces_.push_back(std::move(workspace));
  }
  for (int i = 0; i < num_threads; ++i) {
    Workspace& workspace = writer->workspaces_[static_cast<size_t>(i)];
    writer->threads_.emplace_back(
        [w = writer.get(), &workspace](const std::stop_token& stop) { w->run(stop, workspace); });
  }
  return writer;
}

PageWriter::~PageWriter() {
  give_up();
}

void PageWriter::begin(const StagedLayer& layer) {
  layer_ = layer;
  bytes_written_ = 0;
  next_chunk_ = 0;
  failure_.reset();
  for (Workspace& workspace : workspaces_) workspace.lane->follow();
  if (threads_.empty()) return work(++num_begun_, workspaces_.front());
  const std::lock_guard lock(mutex_);
  ++num_begun_;
  num_working_ = static_cast<int>(threads_.size());
  changed_.notify_all();
}

// Threads look up at every chunk, and what they wait for meanwhile has a deadline.
void PageWriter::give_up() {
  next_chunk_ = std::numeric_limits<int32_t>::max();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_working_ == 0; });
}

Result<void> PageWriter::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.when(), [&] { return num_working_ == 0; })) {
    return error(
        Errc::kDeadlineExceeded,
        "request '{}': layer {} was not stored in time; {} of {} threads are still writing",
        layer_.request_id, layer_.layer, num_working_, threads_.size());
  }
  if (failure_) return *failure_;
  return {};
}

void PageWriter::run(const std::stop_token& stop, Workspace& workspace) {
  int64_t num_done = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return num_begun_ > num_done; })) return;
      num_done = num_begun_;
    }
    work(num_done, workspace);
    const std::lock_guard lock(mutex_);
    --num_working_;
    changed_.notify_all();
  }
}

void PageWriter::work(int64_t number, Workspace& workspace) {
  try {
    const auto arrived = wait_for_layer(number, workspace);
    if (!arrived.ok()) return fail(arrived.error());
    while (const auto chunk = take_chunk()) {
      auto done = read_chunk(*chunk, workspace);
      if (done.ok()) done = write_chunk(*chunk, workspace);
      if (!done.ok()) return fail(done.error());
    }
  } catch (const std::exception& e) {  // a GPU that failed; the engine's thread will see it too
    fail(Error(Errc::kInternal, e.what()));
  }
}

// One thread asks the device and the others wait for that one: most of a layer goes by, and the
// engine's thread has the driver to itself to enqueue the next.
Result<void> PageWriter::wait_for_layer(int64_t number, Workspace& workspace) {
  const std::lock_guard lock(arrival_mutex_);
  if (num_arrived_ == number) return {};
  MR_RETURN_IF_ERROR(workspace.lane->synchronize(Deadline::after(kLayerTimeout)));
  num_arrived_ = number;
  return {};
}

void PageWriter::fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
}

std::optional<PageWriter::Chunk> PageWriter::take_chunk() {
  const int64_t num_pages = std::ssize(layer_.pages);
  const int64_t chunks_per_head = ceil_div(num_pages, kChunkPages);
  const int64_t i = next_chunk_.fetch_add(1);
  if (i >= layer_.kv.num_kv_heads * chunks_per_head) return std::nullopt;
  const int64_t first = i % chunks_per_head * kChunkPages;
  return Chunk{.head = static_cast<int32_t>(i / chunks_per_head),
               .first = first,
               .count = std::min(kChunkPages, num_pages - first)};
}

// Stripes are whole pages but for the prompt's end, so the rank's i-th page is its rows [64 i, 64 i
// + 64), and only its last page may be short: zeros follow.
void PageWriter::read_half(const Chunk& chunk, const void* rows, std::byte* pages,
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

Result<void> PageWriter::read_chunk(const Chunk& chunk, Workspace& workspace) {
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

Result<void> PageWriter::write_chunk(const Chunk& chunk, const Workspace& workspace) {
  const auto page_bytes = static_cast<size_t>(geometry_.page_bytes());
  const auto head_dim = static_cast<size_t>(geometry_.head_dim);
  const auto digest = [&](int64_t kind, int64_t page) {
    return std::span(
        workspace.digests.as<const float>() + (kind * chunk.count + page) * geometry_.head_dim,
        head_dim);
  };
  for (int64_t i = 0; i < chunk.count; ++i) {
    const kvstore::PageKey key{.layer = layer_.layer,
                               .kv_head = geometry_.first_kv_head + chunk.head,
                               .page = layer_.pages[static_cast<size_t>(chunk.first + i)]};
    const auto* page = workspace.pages.as<const std::byte>() + static_cast<size_t>(i) * page_bytes;
    MR_RETURN_IF_ERROR(
        store_.write_page(layer_.request_id, key, {page, page_bytes},
                          {.min = digest(0, i), .max = digest(1, i), .radius = digest(2, i)}));
    bytes_written_ += geometry_.page_bytes();
  }
  return {};
}

}  // namespace millrace::worker
