#include "worker/store_sink.h"

#include <algorithm>
#include <cstring>

namespace millrace::worker {

namespace {

// For one head's copy: more than any working device needs.
constexpr auto kCopyTimeout = std::chrono::seconds(60);

}  // namespace

StoreSink::StoreSink(kernels::Device& device, kvstore::KvStore& store, std::string request_id,
                     const kvstore::KvGeometry& geometry, std::vector<int64_t> pages)
    : device_(device),
      store_(store),
      request_id_(std::move(request_id)),
      geometry_(geometry),
      pages_(std::move(pages)),
      page_(static_cast<size_t>(geometry.page_bytes())) {}

Result<void> StoreSink::prepare(const LocalKv& local) {
  if (windows_) return {};
  const int64_t head_bytes = local.num_rows * local.head_dim * dtype_bytes(local.dtype);
  const int64_t digest_floats = std::ssize(pages_) * local.head_dim;
  MR_ASSIGN_OR_RETURN(digests_, device_.allocate(3 * digest_floats * int64_t{sizeof(float)}));
  MR_ASSIGN_OR_RETURN(auto k, kernels::HostWindow::create(device_, head_bytes));
  MR_ASSIGN_OR_RETURN(auto v, kernels::HostWindow::create(device_, head_bytes));
  MR_ASSIGN_OR_RETURN(auto digests, kernels::HostWindow::create(device_, digests_.bytes()));
  windows_ = {.k = std::move(k), .v = std::move(v), .digests = std::move(digests)};
  return {};
}

Result<void> StoreSink::write_layer(const LayerKv& kv) {
  MR_RETURN_IF_ERROR(prepare(kv.local));
  std::vector<float> own_scores(pages_.size());
  for (int32_t h = 0; h < kv.local.num_kv_heads; ++h) {
    const int32_t kv_head = geometry_.first_kv_head + h;
    MR_ASSIGN_OR_RETURN(const auto head, read_head(kv.local, h));
    MR_RETURN_IF_ERROR(write_head(kv.layer, kv_head, head));
    for (size_t i = 0; i < pages_.size(); ++i) {
      own_scores[i] = kv.page_scores[static_cast<size_t>(h * kv.num_pages + pages_[i])];
    }
    MR_RETURN_IF_ERROR(store_.set_scores(request_id_, kv.layer, kv_head, own_scores));
  }
  return {};
}

Result<StoreSink::HostHead> StoreSink::read_head(const LocalKv& local, int32_t head) {
  const int64_t head_bytes = local.num_rows * local.head_dim * dtype_bytes(local.dtype);
  const auto* k = static_cast<const std::byte*>(local.k) + head * head_bytes;
  const auto* v = static_cast<const std::byte*>(local.v) + head * head_bytes;
  const int64_t digest_floats = std::ssize(pages_) * local.head_dim;
  device_.page_digests({.k = k,
                        .dtype = local.dtype,
                        .num_tokens = local.num_rows,
                        .head_dim = local.head_dim,
                        .min = digests_.as<float>(),
                        .max = digests_.as<float>() + digest_floats,
                        .radius = digests_.as<float>() + 2 * digest_floats});
  const auto deadline = Deadline::after(kCopyTimeout);
  HostHead host{.num_rows = local.num_rows};
  MR_ASSIGN_OR_RETURN(host.k, windows_->k.read(k, head_bytes, deadline));
  MR_ASSIGN_OR_RETURN(host.v, windows_->v.read(v, head_bytes, deadline));
  MR_ASSIGN_OR_RETURN(const auto digests,
                      windows_->digests.read(digests_.data(), digests_.bytes(), deadline));
  host.digests = reinterpret_cast<const float*>(digests.data());
  return host;
}

Result<void> StoreSink::write_head(int32_t layer, int32_t kv_head, const HostHead& head) {
  const auto head_dim = static_cast<size_t>(geometry_.head_dim);
  const size_t digest_floats = pages_.size() * head_dim;
  for (size_t i = 0; i < pages_.size(); ++i) {
    fill_page(head, static_cast<int64_t>(i));
    const auto digest = [&](size_t kind) {
      return std::span(head.digests + kind * digest_floats + i * head_dim, head_dim);
    };
    MR_RETURN_IF_ERROR(
        store_.write_page(request_id_, {.layer = layer, .kv_head = kv_head, .page = pages_[i]},
                          page_, {.min = digest(0), .max = digest(1), .radius = digest(2)}));
  }
  return {};
}

// Stripes are whole pages but for the prompt's end, so the rank's i-th page is its rows [64 i, 64 i
// + 64).
void StoreSink::fill_page(const HostHead& head, int64_t ordinal) {
  const int64_t row_bytes = geometry_.head_dim * dtype_bytes(geometry_.dtype);
  const int64_t first = ordinal * geometry_.page_tokens;
  const int64_t rows = std::min<int64_t>(geometry_.page_tokens, head.num_rows - first);
  const int64_t half_bytes = geometry_.page_bytes() / 2;
  const auto copy_half = [&](std::span<const std::byte> source, std::byte* to) {
    std::memcpy(to, source.data() + first * row_bytes, static_cast<size_t>(rows * row_bytes));
    std::memset(to + rows * row_bytes, 0, static_cast<size_t>(half_bytes - rows * row_bytes));
  };
  copy_half(head.k, page_.data());
  copy_half(head.v, page_.data() + half_bytes);
}

}  // namespace millrace::worker
