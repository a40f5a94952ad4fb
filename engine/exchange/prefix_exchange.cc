// SPDX-License-Identifier: Apache-2.0
#include "engine/exchange/prefix_exchange.h"

#include <algorithm>
#include <utility>

#include "common/units.h"

namespace millrace::engine {

namespace {

// Enough for a whole prefix whose pages lie on the ranks in equal parts.
constexpr size_t kChunksOnTheWay = kPrefixChunks;

}  // namespace

PrefixExchange::PrefixExchange(kernels::Device& device, const PromptPrefix& prefix,
                               comm::DeviceCommunicator& cp, const KvShape& shape)
    : device_(&device), prefix_(&prefix), cp_(&cp), shape_(shape) {
  if (cp.size() > 1 && prefix.num_pages() > 0) cut();
}

void PrefixExchange::cut() {
  std::vector<std::vector<int64_t>> pages;
  size_t most = 0;
  for (int rank = 0; rank < cp_->size(); ++rank) {
    most = std::max(most, pages.emplace_back(prefix_->pages(rank)).size());
  }
  // Divides the ranks' mean number of pages, not the largest: a prefix may lie on one rank alone.
  const auto pages_together =
      static_cast<size_t>(ceil_div(prefix_->num_pages(), kPrefixChunks * cp_->size()));
  chunk_rows_ = static_cast<int64_t>(pages_together) * kPageTokens;
  for (size_t first = 0; first < most; first += pages_together) {
    Chunk chunk{.first = static_cast<int64_t>(first)};
    for (int rank = 0; rank < cp_->size(); ++rank) {
      const auto& held = pages[static_cast<size_t>(rank)];
      const size_t end = std::min(held.size(), first + pages_together);
      for (size_t i = first; i < end;) {
        size_t next = i + 1;
        while (next < end && held[next] == held[next - 1] + 1) ++next;
        const int64_t row = rank * shape_.num_kv_heads * chunk_rows_ +
                            static_cast<int64_t>(i - first) * kPageTokens;
        add_piece(chunk, row, held[i] * kPageTokens, static_cast<int64_t>(next - i) * kPageTokens);
        i = next;
      }
      if (rank == cp_->rank()) chunk.count = static_cast<int64_t>(std::max(end, first) - first);
    }
    chunks_.push_back(std::move(chunk));
  }
}

void PrefixExchange::add_piece(Chunk& chunk, int64_t row, int64_t token, int64_t num_rows) const {
  const int64_t row_bytes = shape_.row_bytes();
  if (float8()) {
    chunk.decoded.push_back({.codes = row * shape_.head_dim,
                             .x = token * shape_.head_dim,
                             .count = num_rows * shape_.head_dim});
  } else {
    chunk.copied.push_back({.destination = token * row_bytes,
                            .source = row * row_bytes,
                            .bytes = num_rows * row_bytes});
  }
}

int64_t PrefixExchange::bytes() const {
  const auto on_the_way = static_cast<int64_t>(std::min(chunks_.size(), kChunksOnTheWay));
  return on_the_way * cp_->size() * rank_bytes();
}

void PrefixExchange::use(void* k, void* v) {
  k_ = k;
  v_ = v;
}

std::byte* PrefixExchange::place(void* side, size_t chunk) const {
  const auto turn = static_cast<int64_t>(chunk % kChunksOnTheWay);
  return static_cast<std::byte*>(side) + turn * cp_->size() * rank_bytes();
}

// On the device, a chunk is loaded into its place after the copies that last read that place, and
// gathered after both.
Result<void> PrefixExchange::send(size_t number, PrefixSource& source, int32_t layer,
                                  Result<void>& loaded, Deadline deadline) {
  Chunk& chunk = chunks_[number];
  std::byte* const k = place(k_, number);
  std::byte* const v = place(v_, number);
  if (chunk.count > 0 && loaded.ok()) {
    const int64_t own = cp_->rank() * rank_bytes();
    loaded = source.load_stored(layer, chunk.first, chunk.count,
                                {.k = k + own, .v = v + own, .stride = chunk_rows_});
  }
  cp_->follow();
  MR_RETURN_IF_ERROR(cp_->all_gather("prefix", k, rank_bytes(), deadline));
  MR_RETURN_IF_ERROR(cp_->all_gather("prefix", v, rank_bytes(), deadline));
  chunk.arrived = cp_->mark();
  return {};
}

Result<void> PrefixExchange::prefetch(PrefixSource& source, int32_t layer, Result<void>& loaded,
                                      Deadline deadline) {
  for (size_t i = 0; i < std::min(chunks_.size(), kChunksOnTheWay); ++i) {
    MR_RETURN_IF_ERROR(send(i, source, layer, loaded, deadline));
  }
  prefetched_ = layer;
  return {};
}

Result<void> PrefixExchange::bring(PrefixSource& source, int32_t layer, const KvPlace& slab,
                                   Result<void>& loaded, Deadline deadline) {
  if (prefetched_ != layer) MR_RETURN_IF_ERROR(prefetch(source, layer, loaded, deadline));
  for (size_t i = 0; i < chunks_.size(); ++i) {
    cp_->join(chunks_[i].arrived);
    put(i, layer, slab);
    const size_t next = i + kChunksOnTheWay;
    if (next < chunks_.size()) {
      MR_RETURN_IF_ERROR(send(next, source, layer, loaded, deadline));
    }
  }
  return {};
}

void PrefixExchange::put(size_t number, int32_t layer, const KvPlace& slab) {
  const Chunk& chunk = chunks_[number];
  const std::byte* const k = place(k_, number);
  const std::byte* const v = place(v_, number);
  if (float8()) {
    decode(chunk, k, layer, &KvScale::k, slab.k, slab.stride);
    decode(chunk, v, layer, &KvScale::v, slab.v, slab.stride);
    return;
  }
  for (const auto& [from, to] : {std::pair(k, slab.k), {v, slab.v}}) {
    device_->copy_pieces({.destination = to,
                          .destination_plane_bytes = slab.stride * shape_.row_bytes(),
                          .source = from,
                          .source_plane_bytes = chunk_rows_ * shape_.row_bytes(),
                          .num_planes = shape_.num_kv_heads,
                          .pieces = chunk.copied});
  }
}

void PrefixExchange::decode(const Chunk& chunk, const std::byte* rows, int32_t layer,
                            float KvScale::*side, void* slab, int64_t slab_rows) {
  const int64_t codes_stride = chunk_rows_ * shape_.head_dim;
  const int64_t slab_stride = slab_rows * shape_.head_dim;
  const KvScales& scales = *prefix_->float8;
  const int32_t heads_together = scales.by_head() ? 1 : shape_.num_kv_heads;
  for (int32_t head = 0; head < shape_.num_kv_heads; head += heads_together) {
    device_->float8_decode_pieces(
        {.codes = reinterpret_cast<const Float8*>(rows) + head * codes_stride,
         .codes_stride = codes_stride,
         .x = static_cast<std::byte*>(slab) + head * slab_stride * dtype_bytes(shape_.dtype),
         .dtype = shape_.dtype,
         .x_stride = slab_stride,
         .num_planes = heads_together,
         .pieces = chunk.decoded,
         .scale = scales.of(layer, shape_.first_kv_head + head).*side});
  }
}

}  // namespace millrace::engine
