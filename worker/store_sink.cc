#include "worker/store_sink.h"

#include <utility>

namespace millrace::worker {

namespace {

// For a layer's way to the store, disk included.
constexpr auto kLayerTimeout = std::chrono::minutes(5);

}  // namespace

StoreSink::StoreSink(kernels::Device& device, kvstore::KvStore& store, std::string request_id,
                     const kvstore::KvGeometry& geometry, std::vector<int64_t> pages,
                     int num_threads)
    : device_(device),
      store_(store),
      request_id_(std::move(request_id)),
      geometry_(geometry),
      pages_(std::move(pages)),
      num_threads_(device.info().host_memory ? 0 : num_threads) {}

Result<void> StoreSink::prepare(const LocalKv& local) {
  if (writer_ != nullptr) return {};
  const int64_t digests_bytes = int64_t{local.num_kv_heads} * 3 * std::ssize(pages_) *
                                local.head_dim * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(digests_, device_.allocate(digests_bytes));
  if (num_threads_ > 0) {
    const int64_t layer_bytes =
        local.num_kv_heads * local.num_rows * local.head_dim * dtype_bytes(local.dtype);
    MR_ASSIGN_OR_RETURN(k_, device_.allocate(layer_bytes));
    MR_ASSIGN_OR_RETURN(v_, device_.allocate(layer_bytes));
  }
  MR_ASSIGN_OR_RETURN(
      writer_, PageWriter::create(device_, store_, request_id_, geometry_, pages_, num_threads_));
  return {};
}

Result<void> StoreSink::write_layer(const LayerKv& kv) {
  MR_RETURN_IF_ERROR(prepare(kv.local));
  // Of the layer before, now that this one is computed.
  if (layer_ >= 0) stored_.while_computing += writer_->bytes_written();
  MR_RETURN_IF_ERROR(complete_layer());
  writer_->begin(stage(kv));
  layer_ = kv.layer;
  scores_.assign(static_cast<size_t>(kv.local.num_kv_heads), {});
  for (size_t head = 0; head < scores_.size(); ++head) {
    for (const int64_t page : pages_) {
      scores_[head].push_back(
          kv.page_scores[head * static_cast<size_t>(kv.num_pages) + static_cast<size_t>(page)]);
    }
  }
  // Without threads it is complete now.
  return num_threads_ == 0 ? complete_layer() : Result<void>();
}

StagedLayer StoreSink::stage(const LayerKv& kv) {
  StagedLayer layer{.layer = kv.layer, .kv = kv.local, .digests = digests_.as<float>()};
  if (num_threads_ > 0) {
    device_.copy(k_.data(), kv.local.k, k_.bytes());
    device_.copy(v_.data(), kv.local.v, v_.bytes());
    layer.kv.k = k_.data();
    layer.kv.v = v_.data();
  }
  const int64_t head_bytes = kv.local.num_rows * kv.local.head_dim * dtype_bytes(kv.local.dtype);
  const int64_t digest_floats = std::ssize(pages_) * kv.local.head_dim;
  for (int32_t head = 0; head < kv.local.num_kv_heads; ++head) {
    float* digests = digests_.as<float>() + head * 3 * digest_floats;
    device_.page_digests({.k = static_cast<const std::byte*>(layer.kv.k) + head * head_bytes,
                          .dtype = kv.local.dtype,
                          .num_tokens = kv.local.num_rows,
                          .head_dim = kv.local.head_dim,
                          .min = digests,
                          .max = digests + digest_floats,
                          .radius = digests + 2 * digest_floats});
  }
  return layer;
}

Result<void> StoreSink::complete_layer() {
  if (layer_ < 0) return {};
  MR_RETURN_IF_ERROR(writer_->wait(Deadline::after(kLayerTimeout)));
  for (size_t head = 0; head < scores_.size(); ++head) {
    MR_RETURN_IF_ERROR(store_.set_scores(
        request_id_, layer_, geometry_.first_kv_head + static_cast<int32_t>(head), scores_[head]));
  }
  stored_.total += writer_->bytes_written();
  num_complete_ = layer_ + 1;
  layer_ = -1;
  return {};
}

Result<void> StoreSink::finish() {
  return complete_layer();
}

}  // namespace millrace::worker
