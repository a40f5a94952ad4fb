// SPDX-License-Identifier: Apache-2.0
#include "engine/dense_rows.h"

#include <algorithm>
#include <numeric>

#include "common/units.h"
#include "kernels/index/closed_form.h"

namespace millrace::engine {

namespace {

constexpr int64_t kFloatBytes = sizeof(float);
// Alignment of a rank's block, the same as of device memory in general.
constexpr int64_t kBlockAlignment = 64;

}  // namespace

Result<DenseRows> DenseRows::create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                    const Partition& partition, const DenseRowsShape& shape) {
  DenseRows rows(device, cp, partition, shape);
  MR_ASSIGN_OR_RETURN(rows.q_, device.allocate(rows.num_rows() * rows.row_bytes()));
  if (rows.dealt()) MR_RETURN_IF_ERROR(rows.deal());
  return rows;
}

Result<void> DenseRows::deal() {
  int64_t max_heads = 0;
  for (int rank = 0; rank < cp_->size(); ++rank) {
    max_heads = std::max<int64_t>(max_heads, query_heads(rank).count);
  }
  lse_offset_ = max_heads * num_rows() * shape_.head_bytes();
  block_bytes_ = round_up(lse_offset_ + max_heads * num_rows() * kFloatBytes, kBlockAlignment);
  MR_ASSIGN_OR_RETURN(dealt_q_,
                      device_->allocate(num_dealt_heads() * num_rows() * shape_.head_bytes()));
  MR_ASSIGN_OR_RETURN(lse_, device_->allocate(shape_.num_query_heads * num_rows() * kFloatBytes));
  for (int64_t position = first_position_; position < partition_->num_tokens();
       position += kernels::kTileRows) {
    tiles_.push_back(
        {.local_row = position - first_position_,
         .position = position,
         .num_rows = std::min(kernels::kTileRows, partition_->num_tokens() - position)});
  }
  find_pieces();
  return make_index();
}

// The ranks' shares differ by one kv head at most.
DenseRows::HeadRange DenseRows::kv_heads(int rank) const {
  const int32_t first = rank * shape_.num_kv_heads / cp_->size();
  const int32_t end = (rank + 1) * shape_.num_kv_heads / cp_->size();
  return {.first = first, .count = end - first};
}

DenseRows::HeadRange DenseRows::query_heads(int rank) const {
  const int32_t group = shape_.num_query_heads / shape_.num_kv_heads;
  const HeadRange kv = kv_heads(rank);
  return {.first = kv.first * group, .count = kv.count * group};
}

void DenseRows::find_pieces() {
  for (int rank = 0; rank < cp_->size(); ++rank) {
    const HeadRange heads = query_heads(rank);
    if (heads.count == 0) continue;
    const int64_t block = rank * block_bytes_;
    const int64_t bytes = heads.count * shape_.head_bytes();
    for (const auto& run : own_runs()) {
      for (int64_t i = 0; i < run.num_tokens; ++i) {
        to_out_.push_back(
            {.destination = (run.local_row + i) * row_bytes() + heads.first * shape_.head_bytes(),
             .source = block + (run.position + i - first_position_) * bytes,
             .bytes = bytes});
      }
    }
    to_lse_.push_back({.destination = heads.first * num_rows() * kFloatBytes,
                       .source = block + lse_offset_,
                       .bytes = heads.count * num_rows() * kFloatBytes});
  }
}

// Dense rows need no lists, but the device requires them.
Result<void> DenseRows::make_index() {
  const int32_t num_heads = num_dealt_heads();
  if (num_heads == 0) return {};
  MR_ASSIGN_OR_RETURN(
      index_, LayerIndex::create(*device_, plan::HeadPlan(1, num_heads, {}),
                                 /*first_head=*/0, num_heads, partition_->num_tokens(), tiles_));
  std::vector<int32_t> heads(static_cast<size_t>(num_heads));
  std::iota(heads.begin(), heads.end(), 0);
  const std::vector forms(heads.size(), kernels::dense_form(partition_->num_tokens()));
  device_->build_closed_form({.num_tokens = partition_->num_tokens(),
                              .heads = heads,
                              .forms = forms,
                              .index = index_.view()});
  return {};
}

Result<void> DenseRows::take_buffers() {
  if (!dealt()) return {};
  MR_ASSIGN_OR_RETURN(gathered_, cp_->allocate(cp_->size() * block_bytes_));
  return {};
}

Result<void> DenseRows::connect(Deadline deadline) {
  return dealt() ? cp_->connect(*gathered_, deadline) : Result<void>();
}

std::vector<OwnedRun> DenseRows::own_runs() const {
  auto runs = partition_->owned_runs({first_position_, partition_->num_tokens()});
  std::erase_if(runs, [&](const OwnedRun& run) { return run.owner != cp_->rank(); });
  return runs;
}

Result<void> DenseRows::send_queries(const void* q, Deadline deadline) {
  for (const auto& run : own_runs()) {
    device_->copy(query(run.position),
                  static_cast<const std::byte*>(q) + run.local_row * row_bytes(),
                  run.num_tokens * row_bytes());
  }
  if (cp_->size() > 1) {
    cp_->follow();
    for (const auto& run : partition_->owned_runs({first_position_, partition_->num_tokens()})) {
      MR_RETURN_IF_ERROR(cp_->broadcast("queries", query(run.position),
                                        run.num_tokens * row_bytes(), run.owner, deadline));
    }
  }
  queries_arrived_ = cp_->mark();
  return {};
}

kernels::LastRows DenseRows::last_rows() const {
  const int64_t count = std::min(kernels::kLastRows, partition_->num_tokens());
  const int64_t first = partition_->num_tokens() - count;
  return {.q = query(first),
          .num_rows = count,
          .first_position = first,
          .num_query_heads = shape_.num_query_heads,
          .scale = shape_.scale};
}

std::span<const kernels::RowTile> DenseRows::others(std::span<const kernels::RowTile> tiles) const {
  if (!dealt()) return tiles;
  const auto first_dense =
      std::ranges::lower_bound(tiles, first_position_, {}, &kernels::RowTile::position);
  return {tiles.begin(), first_dense};
}

kernels::KvSlab DenseRows::dealt_part(const kernels::KvSlab& kv) const {
  const HeadRange heads = kv_heads(cp_->rank());
  const int64_t offset = heads.first * kv.token_stride * shape_.head_bytes();
  kernels::KvSlab part = kv;
  part.k = static_cast<const std::byte*>(kv.k) + offset;
  part.v = static_cast<const std::byte*>(kv.v) + offset;
  part.num_kv_heads = heads.count;
  return part;
}

Result<void> DenseRows::attend(const kernels::KvSlab& kv, int64_t window, const float* sinks,
                               int64_t* covered_pairs, Deadline deadline) {
  const HeadRange heads = query_heads(cp_->rank());
  if (heads.count > 0) {
    const int64_t dealt_bytes = heads.count * shape_.head_bytes();
    auto* block = static_cast<std::byte*>(gathered_->data()) + cp_->rank() * block_bytes_;
    device_->copy_rows({.destination = dealt_q_.data(),
                        .destination_stride_bytes = dealt_bytes,
                        .source = q_.as<std::byte>() + heads.first * shape_.head_bytes(),
                        .source_stride_bytes = row_bytes(),
                        .row_bytes = dealt_bytes,
                        .num_rows = num_rows()});
    device_->attention({.q = dealt_q_.data(),
                        .num_rows = num_rows(),
                        .num_query_heads = heads.count,
                        .scale = shape_.scale,
                        .kv = dealt_part(kv),
                        .tiles = tiles_,
                        .index = index_.view(),
                        .window = window,
                        .sinks = sinks == nullptr ? nullptr : sinks + heads.first,
                        .out = block,
                        .lse = reinterpret_cast<float*>(block + lse_offset_),
                        .covered_pairs = covered_pairs});
  }
  cp_->follow();
  MR_RETURN_IF_ERROR(cp_->all_gather("dense rows", gathered_->data(), block_bytes_, deadline));
  gathered_all_ = cp_->mark();
  return {};
}

void DenseRows::finish(void* out) {
  cp_->join(gathered_all_);
  device_->copy_pieces({.destination = out, .source = gathered_->data(), .pieces = to_out_});
  device_->copy_pieces(
      {.destination = lse_.data(), .source = gathered_->data(), .pieces = to_lse_});
}

}  // namespace millrace::engine
