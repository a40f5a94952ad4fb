#include "worker/store_sink.h"

#include <algorithm>
#include <cstring>

namespace millrace::worker {

StoreSink::StoreSink(kernels::Device& device, kvstore::KvStore& store, std::string request_id,
                     const kvstore::KvGeometry& geometry, std::vector<int64_t> pages)
    : device_(device),
      store_(store),
      request_id_(std::move(request_id)),
      geometry_(geometry),
      pages_(std::move(pages)),
      page_(static_cast<size_t>(geometry.page_bytes())) {
  const size_t digest_floats = pages_.size() * static_cast<size_t>(geometry.head_dim);
  min_.resize(digest_floats);
  max_.resize(digest_floats);
  radius_.resize(digest_floats);
}

Result<void> StoreSink::write_layer(const LayerKv& kv) {
  std::vector<float> own_scores(pages_.size());
  for (int32_t head = 0; head < kv.local.num_kv_heads; ++head) {
    MR_RETURN_IF_ERROR(write_head(kv, head));
    for (size_t i = 0; i < pages_.size(); ++i) {
      own_scores[i] = kv.page_scores[static_cast<size_t>(head * kv.num_pages + pages_[i])];
    }
    MR_RETURN_IF_ERROR(
        store_.set_scores(request_id_, kv.layer, geometry_.first_kv_head + head, own_scores));
  }
  return {};
}

Result<void> StoreSink::write_head(const LayerKv& kv, int32_t head) {
  const auto& local = kv.local;
  const int64_t head_bytes = local.num_rows * local.head_dim * dtype_bytes(local.dtype);
  device_.page_digests({.k = static_cast<const std::byte*>(local.k) + head * head_bytes,
                        .dtype = local.dtype,
                        .num_tokens = local.num_rows,
                        .head_dim = local.head_dim,
                        .min = min_.data(),
                        .max = max_.data(),
                        .radius = radius_.data()});
  const auto head_dim = static_cast<size_t>(local.head_dim);
  for (size_t i = 0; i < pages_.size(); ++i) {
    fill_page(local, head, static_cast<int64_t>(i));
    const auto row = [&](const std::vector<float>& digest) {
      return std::span(digest).subspan(i * head_dim, head_dim);
    };
    MR_RETURN_IF_ERROR(store_.write_page(
        request_id_,
        {.layer = kv.layer, .kv_head = geometry_.first_kv_head + head, .page = pages_[i]}, page_,
        {.min = row(min_), .max = row(max_), .radius = row(radius_)}));
  }
  return {};
}

// Stripes are whole pages but for the prompt's end, so the rank's i-th page is its rows [64 i, 64 i
// + 64).
void StoreSink::fill_page(const LocalKv& local, int32_t head, int64_t ordinal) {
  const int64_t row_bytes = local.head_dim * dtype_bytes(local.dtype);
  const int64_t first = ordinal * geometry_.page_tokens;
  const int64_t rows = std::min<int64_t>(geometry_.page_tokens, local.num_rows - first);
  const int64_t half_bytes = geometry_.page_bytes() / 2;
  const auto copy_half = [&](const void* source, std::byte* to) {
    const auto* from =
        static_cast<const std::byte*>(source) + (head * local.num_rows + first) * row_bytes;
    device_.copy(to, from, rows * row_bytes);
    std::memset(to + rows * row_bytes, 0, static_cast<size_t>(half_bytes - rows * row_bytes));
  };
  copy_half(local.k, page_.data());
  copy_half(local.v, page_.data() + half_bytes);
}

}  // namespace millrace::worker
