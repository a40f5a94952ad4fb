// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/bench_index.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "common/check.h"
#include "kernels/index/tiling.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::bench {

using kernels::Band;
using kernels::IndexShape;
using kernels::IndexView;

namespace {

constexpr auto kCopyTimeout = std::chrono::minutes(1);
constexpr int32_t kFirstColumns = 30;
constexpr int64_t kRunOffsets = 64;

// Where an array of a view begins and how large it is.
struct IndexArray {
  void** data;
  int64_t bytes;
};

std::vector<IndexArray> arrays_of(IndexView& view) {
  const IndexShape& shape = view.shape;
  const auto heads = int64_t{shape.num_heads};
  const auto place = [](auto*& pointer, int64_t count) {
    return IndexArray{reinterpret_cast<void**>(&pointer),
                      count * static_cast<int64_t>(sizeof(*pointer))};
  };
  return {place(view.bands, heads * shape.max_bands),
          place(view.num_bands, heads),
          place(view.columns, heads * shape.max_columns),
          place(view.num_columns, heads),
          place(view.block_count, heads * shape.num_tiles),
          place(view.block_begin, heads * shape.num_tiles),
          place(view.blocks, heads * shape.max_blocks)};
}

}  // namespace

HostIndex::HostIndex(const IndexShape& shape) {
  view_.shape = shape;
  for (const auto& array : arrays_of(view_)) {
    storage_.emplace_back(static_cast<size_t>(array.bytes));
    *array.data = storage_.back().data();
  }
}

void HostIndex::set(int32_t head, const HeadLists& lists) {
  const auto& shape = view_.shape;
  MR_CHECK(
      std::ssize(lists.bands) <= shape.max_bands && std::ssize(lists.columns) <= shape.max_columns,
      "{} bands, {} columns", lists.bands.size(), lists.columns.size());
  std::ranges::copy(lists.bands, view_.bands + int64_t{head} * shape.max_bands);
  std::ranges::copy(lists.columns, view_.columns + int64_t{head} * shape.max_columns);
  view_.num_bands[head] = static_cast<int32_t>(lists.bands.size());
  view_.num_columns[head] = static_cast<int32_t>(lists.columns.size());
}

Result<BenchIndex> BenchIndex::create(kernels::Device& device, const IndexShape& shape) {
  BenchIndex index;
  index.view_.shape = shape;
  for (const auto& array : arrays_of(index.view_)) {
    MR_ASSIGN_OR_RETURN(auto buffer, device.allocate(array.bytes));
    *array.data = buffer.data();
    index.storage_.push_back(std::move(buffer));
  }
  return index;
}

Result<void> BenchIndex::upload(kernels::Device& device, const HostIndex& index) {
  IndexView from = index.view(), to = view_;
  const auto sources = arrays_of(from), destinations = arrays_of(to);
  for (size_t i = 0; i < sources.size(); ++i) {
    MR_CHECK(sources[i].bytes == destinations[i].bytes, "indexes of different shapes");
    if (sources[i].bytes == 0) continue;
    device.copy(*destinations[i].data, *sources[i].data, sources[i].bytes);
  }
  return device.synchronize(Deadline::after(kCopyTimeout));
}

Result<HostIndex> BenchIndex::download(kernels::Device& device) const {
  HostIndex index(view_.shape);
  IndexView from = view_, to = index.view();
  const auto sources = arrays_of(from), destinations = arrays_of(to);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].bytes == 0) continue;
    device.copy(*destinations[i].data, *sources[i].data, sources[i].bytes);
  }
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kCopyTimeout)));
  return index;
}

int64_t BenchIndex::bytes() const {
  int64_t bytes = 0;
  for (const auto& buffer : storage_) bytes += buffer.bytes();
  return bytes;
}

HeadLists vertical_slash_lists(int64_t num_tokens, int32_t verticals, int32_t slashes,
                               uint64_t seed) {
  const auto tokens = static_cast<uint64_t>(num_tokens);
  std::set<int32_t> columns;
  for (int32_t c = 0; c < std::min<int64_t>(kFirstColumns, num_tokens); ++c) columns.insert(c);
  const auto wanted = static_cast<size_t>(std::min<int64_t>(verticals, num_tokens));
  for (uint64_t i = 0; columns.size() < wanted; ++i) {
    columns.insert(static_cast<int32_t>(model::mixed_bits(seed, 2 * i) % tokens));
  }

  const auto local = std::min<int64_t>(slashes / 3, num_tokens);
  std::vector<Band> runs = {{.lo = 0, .hi = static_cast<int32_t>(std::max<int64_t>(local, 1) - 1)}};
  for (uint64_t i = 0; static_cast<int64_t>(i) < (slashes - local) / kRunOffsets; ++i) {
    const auto lo = static_cast<int32_t>(model::mixed_bits(seed, 2 * i + 1) % tokens);
    runs.push_back({lo, static_cast<int32_t>(std::min(lo + kRunOffsets, num_tokens) - 1)});
  }
  std::ranges::sort(runs, {}, &Band::lo);
  HeadLists lists{.columns = {columns.begin(), columns.end()}};
  for (const Band& run : runs) {
    if (!lists.bands.empty() && run.lo <= lists.bands.back().hi + kernels::kTileRows) {
      lists.bands.back().hi = std::max(lists.bands.back().hi, run.hi);
    } else {
      lists.bands.push_back(run);
    }
  }
  return lists;
}

}  // namespace millrace::bench
