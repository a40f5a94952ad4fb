// SPDX-License-Identifier: Apache-2.0
#include "worker/staging/store_sink.h"

#include <utility>

#include "common/check.h"

namespace millrace::worker {

namespace {

// For a layer to reach the store, disk included.
constexpr auto kLayerTimeout = std::chrono::minutes(5);

}  // namespace

StoreSink::StoreSink(kernels::Device& device, kvstore::RequestWriter& store, PageWriter& writer,
                     std::string request_id, std::vector<int64_t> pages,
                     std::span<const int64_t> prefix_pages)
    : device_(device),
      store_(store),
      writer_(writer),
      request_id_(std::move(request_id)),
      pages_(std::move(pages)),
      held_pages_(prefix_pages.begin(), prefix_pages.end()),
      score_thread_(writer.runs_beside() ? 1 : 0) {
  held_pages_.insert(held_pages_.end(), pages_.begin(), pages_.end());
}

StoreSink::~StoreSink() {
  if (layer_ >= 0) writer_.give_up();
}

Result<void> StoreSink::prepare(const engine::LocalKv& local) {
  if (digests_.data() != nullptr) return {};
  const int64_t digests_bytes = int64_t{local.num_kv_heads} * 3 * std::ssize(pages_) *
                                local.head_dim * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(digests_, device_.allocate(digests_bytes));
  if (!has_stage()) return {};
  const int64_t head_elements = local.num_rows * local.head_dim;
  const int64_t layer_bytes =
      local.num_kv_heads * head_elements * writer_.geometry().element_bytes();
  if (writer_.geometry().float8) {
    MR_ASSIGN_OR_RETURN(kept_, device_.allocate(head_elements * int64_t{sizeof(float)}));
  }
  MR_ASSIGN_OR_RETURN(k_, device_.allocate(layer_bytes));
  MR_ASSIGN_OR_RETURN(v_, device_.allocate(layer_bytes));
  return {};
}

// The stage has room for one layer, so the writers must finish before the device may copy the next.
Result<void> StoreSink::stage_layer(int32_t layer, const engine::LocalKv& local) {
  MR_RETURN_IF_ERROR(prepare(local));
  if (layer_ >= 0) MR_RETURN_IF_ERROR(complete_layer_before(device_.mark()));
  writer_.begin(copy_to_stage(layer, local));
  layer_ = layer;
  return {};
}

Result<void> StoreSink::write_layer(const engine::LayerKv& kv) {
  MR_CHECK(layer_ == kv.layer, "layer {} is staged, not {}", layer_, kv.layer);
  scores_.assign(static_cast<size_t>(kv.local.num_kv_heads), {});
  for (size_t head = 0; head < scores_.size(); ++head) {
    scores_[head].reserve(held_pages_.size());
    for (const int64_t page : held_pages_) {
      scores_[head].push_back(
          kv.page_scores[head * static_cast<size_t>(kv.num_pages) + static_cast<size_t>(page)]);
    }
  }
  // Without threads the layer is complete now.
  return stages_layers() ? Result<void>() : complete_layer();
}

void StoreSink::copy_rows(void* stage, const void* rows, const engine::LocalKv& local) {
  const int64_t bytes = local.num_rows * local.row_bytes();
  device_.copy_rows({.destination = stage,
                     .destination_stride_bytes = bytes,
                     .source = rows,
                     .source_stride_bytes = local.head_rows() * local.row_bytes(),
                     .row_bytes = bytes,
                     .num_rows = local.num_kv_heads});
}

void StoreSink::encode_keys(const engine::LocalKv& local, int32_t head, float scale) {
  const int64_t elements = local.num_rows * local.head_dim;
  device_.float8_encode(
      {.x = static_cast<const std::byte*>(local.k) + head * local.head_rows() * local.row_bytes(),
       .dtype = local.dtype,
       .codes = k_.as<Float8>() + head * elements,
       .count = elements,
       .scale = scale,
       .kept = kept_.as<float>()});
}

void StoreSink::encode_values(const engine::LocalKv& local, int32_t first_head, int32_t num_heads,
                              float scale) {
  const int64_t elements = local.num_rows * local.head_dim;
  device_.float8_encode({.x = static_cast<const std::byte*>(local.v) +
                              first_head * local.head_rows() * local.row_bytes(),
                         .dtype = local.dtype,
                         .x_stride = local.head_rows() * local.head_dim,
                         .codes = v_.as<Float8>() + first_head * elements,
                         .codes_stride = elements,
                         .num_planes = num_heads,
                         .count = elements,
                         .scale = scale});
}

void StoreSink::digest(const void* keys, DType dtype, const engine::LocalKv& local, int32_t head) {
  const int64_t digest_floats = std::ssize(pages_) * local.head_dim;
  float* digests = digests_.as<float>() + head * 3 * digest_floats;
  device_.page_digests({.k = keys,
                        .dtype = dtype,
                        .num_tokens = local.num_rows,
                        .head_dim = local.head_dim,
                        .min = digests,
                        .max = digests + digest_floats,
                        .radius = digests + 2 * digest_floats});
}

StagedLayer StoreSink::copy_to_stage(int32_t number, const engine::LocalKv& local) {
  StagedLayer layer{.request_id = request_id_,
                    .pages = pages_,
                    .layer = number,
                    .kv = local,
                    .digests = digests_.as<float>()};
  if (has_stage()) {
    layer.kv.k = k_.data();
    layer.kv.v = v_.data();
    layer.kv.stride = local.num_rows;
  }
  if (const auto& scales = writer_.geometry().float8) {
    const int32_t first = writer_.geometry().first_kv_head;
    for (int32_t head = 0; head < local.num_kv_heads; ++head) {
      const KvScale& scale = scales->of(number, first + head);
      encode_keys(local, head, scale.k);
      digest(kept_.data(), DType::kFloat32, local, head);
      if (scales->by_head()) encode_values(local, head, 1, scale.v);
    }
    if (!scales->by_head()) encode_values(local, 0, local.num_kv_heads, scales->of(number, 0).v);
    return layer;
  }
  if (has_stage()) {
    copy_rows(k_.data(), local.k, local);
    copy_rows(v_.data(), local.v, local);
  }
  const int64_t head_bytes = layer.kv.head_rows() * local.row_bytes();
  for (int32_t head = 0; head < local.num_kv_heads; ++head) {
    digest(static_cast<const std::byte*>(layer.kv.k) + head * head_bytes, local.dtype, local, head);
  }
  return layer;
}

// No thread notes the moment at which the device finishes. So bytes count as written while
// computing only if they are seen in the store and the device is seen to be still computing: a
// lower bound, too low by less than a layer.
Result<void> StoreSink::complete_layer_before(kernels::TimeMark computed) {
  const auto still_computing = [&] {
    return !device_.wait_for(computed, Deadline::after(Duration::zero())).ok();
  };
  int64_t while_computing = writer_.bytes_written();
  if (!still_computing()) while_computing = 0;
  MR_RETURN_IF_ERROR(complete_layer());
  if (still_computing()) while_computing = writer_.bytes_written();
  stored_.while_computing += while_computing;
  return {};
}

Result<void> StoreSink::complete_layer() {
  if (layer_ < 0) return {};
  MR_RETURN_IF_ERROR(writer_.wait(Deadline::after(kLayerTimeout)));
  stored_.total += writer_.bytes_written();
  layer_ = -1;
  MR_RETURN_IF_ERROR(wait_for_scores());
  begin_scores();
  return score_thread_.any() ? Result<void>() : wait_for_scores();
}

void StoreSink::begin_scores() {
  scores_to_set_ = std::move(scores_);
  const int64_t num_heads = std::ssize(scores_to_set_);
  const auto set = [this, num_heads](int /*thread*/, int64_t head) -> Result<void> {
    MR_RETURN_IF_ERROR(store_.set_scores(
        request_id_, num_complete_, writer_.geometry().first_kv_head + static_cast<int32_t>(head),
        scores_to_set_[static_cast<size_t>(head)]));
    if (head + 1 == num_heads) ++num_complete_;
    return {};
  };
  score_thread_.begin(num_heads, set);
}

Result<void> StoreSink::wait_for_scores() {
  return score_thread_.wait(Deadline::after(kLayerTimeout));
}

Result<void> StoreSink::finish() {
  MR_RETURN_IF_ERROR(complete_layer());
  return wait_for_scores();
}

}  // namespace millrace::worker
