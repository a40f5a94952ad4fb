#include "worker/staging/store_prefix.h"

#include <span>
#include <utility>

namespace millrace::worker {

namespace {

// For a layer's way from the store, disk included.
constexpr auto kLayerTimeout = std::chrono::minutes(5);

}  // namespace

StorePrefix::StorePrefix(kernels::Device& device, PageReader& reader, std::string request_id,
                         std::vector<int64_t> pages)
    : device_(device),
      reader_(reader),
      request_id_(std::move(request_id)),
      pages_(std::move(pages)) {}

StorePrefix::~StorePrefix() {
  reader_.give_up();
}

Result<void> StorePrefix::load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) {
  MR_RETURN_IF_ERROR(make_stage());
  if (k_.data() == nullptr) return bring(layer, first, count, to);
  MR_RETURN_IF_ERROR(wait_for_stage(layer));
  copy_from_stage(first, count, to);
  const bool is_last = first + count == num_pages();
  if (is_last && layer + 1 < reader_.geometry().num_layers) begin_stage(layer + 1);
  return {};
}

Result<void> StorePrefix::make_stage() {
  if (std::exchange(began_, true) || !reader_.runs_beside()) return {};
  const int64_t bytes =
      reader_.geometry().num_kv_heads * num_pages() * reader_.geometry().page_bytes() / 2;
  auto k = device_.allocate(bytes);
  auto v = device_.allocate(bytes);
  for (const auto* side : {&k, &v}) {
    if (!side->ok() && side->error().code != Errc::kExhausted) return side->error();
  }
  if (!k.ok() || !v.ok()) return {};
  k_ = std::move(*k);
  v_ = std::move(*v);
  return {};
}

Result<void> StorePrefix::bring(int32_t layer, int64_t first, int64_t count, const KvPlace& to) {
  const auto pages =
      std::span(pages_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  reader_.begin({.request_id = request_id_, .pages = pages, .layer = layer, .to = to});
  return reader_.wait(Deadline::after(kLayerTimeout));
}

void StorePrefix::begin_stage(int32_t layer) {
  reader_.begin({.request_id = request_id_,
                 .pages = pages_,
                 .layer = layer,
                 .to = {.k = k_.data(),
                        .v = v_.data(),
                        .stride = num_pages() * reader_.geometry().page_tokens}});
  begun_ = layer;
}

Result<void> StorePrefix::wait_for_stage(int32_t layer) {
  if (arrived_ == layer) return {};
  if (begun_ != layer) begin_stage(layer);
  MR_RETURN_IF_ERROR(reader_.wait(Deadline::after(kLayerTimeout)));
  arrived_ = layer;
  return {};
}

void StorePrefix::copy_from_stage(int64_t first, int64_t count, const KvPlace& to) {
  const auto& geometry = reader_.geometry();
  const int64_t half_bytes = geometry.page_bytes() / 2;
  for (const auto& [from, rows] : {std::pair{&k_, to.k}, std::pair{&v_, to.v}}) {
    device_.copy_rows({.destination = rows,
                       .destination_stride_bytes = to.stride * half_bytes / geometry.page_tokens,
                       .source = from->as<std::byte>() + first * half_bytes,
                       .source_stride_bytes = num_pages() * half_bytes,
                       .row_bytes = count * half_bytes,
                       .num_rows = geometry.num_kv_heads});
  }
}

}  // namespace millrace::worker
