// SPDX-License-Identifier: Apache-2.0
#include "worker/staging/store_prefix.h"

#include <span>
#include <utility>

namespace millrace::worker {

namespace {

// For a layer to come from the store, disk included.
constexpr auto kLayerTimeout = std::chrono::minutes(5);
constexpr size_t kMostStages = 2;
// The second stage takes at most this part of the memory that is free, since it is not counted
// among what a prompt needs.
constexpr int64_t kFreePart = 4;

}  // namespace

StorePrefix::StorePrefix(kernels::Device& device, PageReader& reader, PrefixPins& pins,
                         std::vector<int64_t> pages)
    : device_(device), reader_(reader), pins_(pins), pages_(std::move(pages)) {}

StorePrefix::~StorePrefix() {
  if (begun_ > arrived_) reader_.give_up();
}

Result<void> StorePrefix::settle() {
  return begun_ > arrived_ ? wait_for_stage(begun_) : Result<void>();
}

Result<void> StorePrefix::load(int32_t layer, int64_t first, int64_t count,
                               const engine::KvPlace& to) {
  return load(layer, first, count, to, Form::kDecoded);
}

Result<void> StorePrefix::load_stored(int32_t layer, int64_t first, int64_t count,
                                      const engine::KvPlace& to) {
  return load(layer, first, count, to, Form::kStored);
}

Result<void> StorePrefix::load(int32_t layer, int64_t first, int64_t count,
                               const engine::KvPlace& to, Form form) {
  MR_RETURN_IF_ERROR(make_stages());
  if (stages_.empty()) return load_now(layer, first, count, to, form);
  MR_RETURN_IF_ERROR(wait_for_stage(layer));
  const bool has_next = layer + 1 < reader_.geometry().num_layers;
  // The readers' device lanes wait for what the device has been told so far: it has then taken the
  // layer before from the other stage.
  if (has_next && stages_.size() > 1 && begun_ == layer) begin_stage(layer + 1);
  copy_from_stage(stage_of(layer), num_pages(), layer, first, count, to, form);
  const bool is_last = first + count == num_pages();
  if (has_next && stages_.size() == 1 && is_last) begin_stage(layer + 1);
  return {};
}

Result<StorePrefix::Stage> StorePrefix::allocate_stage(int64_t pages) {
  const int64_t bytes =
      reader_.geometry().num_kv_heads * pages * reader_.geometry().page_bytes() / 2;
  Stage stage;
  MR_ASSIGN_OR_RETURN(stage.k, device_.allocate(bytes));
  MR_ASSIGN_OR_RETURN(stage.v, device_.allocate(bytes));
  return stage;
}

Result<void> StorePrefix::make_stages() {
  if (std::exchange(began_, true) || !reader_.runs_beside()) return {};
  const auto& geometry = reader_.geometry();
  const int64_t stage_bytes = geometry.num_kv_heads * num_pages() * geometry.page_bytes();
  while (stages_.size() < kMostStages) {
    if (!stages_.empty() && stage_bytes > device_.free_bytes() / kFreePart) return {};
    auto stage = allocate_stage(num_pages());
    if (!stage.ok()) {
      return stage.error().code == Errc::kExhausted ? Result<void>() : stage.error();
    }
    stages_.push_back(*std::move(stage));
  }
  return {};
}

Result<void> StorePrefix::load_now(int32_t layer, int64_t first, int64_t count,
                                   const engine::KvPlace& to, Form form) {
  const auto& geometry = reader_.geometry();
  if (!geometry.float8 || form == Form::kStored) return bring(layer, first, count, to);
  MR_ASSIGN_OR_RETURN(const auto stage, allocate_stage(count));
  MR_RETURN_IF_ERROR(
      bring(layer, first, count,
            {.k = stage.k.data(), .v = stage.v.data(), .stride = count * geometry.page_tokens}));
  copy_from_stage(stage, count, layer, 0, count, to, form);
  // The stage is freed on return, so the device must have finished with it.
  return device_.synchronize(Deadline::after(kLayerTimeout));
}

Result<void> StorePrefix::bring(int32_t layer, int64_t first, int64_t count,
                                const engine::KvPlace& to) {
  const auto pages =
      std::span(pages_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  reader_.begin({.pins = &pins_, .pages = pages, .layer = layer, .to = to});
  auto brought = reader_.wait(Deadline::after(kLayerTimeout));
  if (!brought.ok()) reader_.give_up();
  return brought;
}

void StorePrefix::begin_stage(int32_t layer) {
  reader_.begin({.pins = &pins_,
                 .pages = pages_,
                 .layer = layer,
                 .to = {.k = stage_of(layer).k.data(),
                        .v = stage_of(layer).v.data(),
                        .stride = num_pages() * reader_.geometry().page_tokens}});
  begun_ = layer;
}

Result<void> StorePrefix::wait_for_stage(int32_t layer) {
  if (arrived_ >= layer) return {};
  if (begun_ != layer) begin_stage(layer);
  MR_RETURN_IF_ERROR(reader_.wait(Deadline::after(kLayerTimeout)));
  arrived_ = layer;
  return {};
}

void StorePrefix::copy_from_stage(const Stage& stage, int64_t staged, int32_t layer, int64_t first,
                                  int64_t count, const engine::KvPlace& to, Form form) {
  const auto& geometry = reader_.geometry();
  const int64_t half_bytes = geometry.page_bytes() / 2;
  const int64_t half_elements = int64_t{geometry.page_tokens} * geometry.head_dim;
  const auto decode = [&](const std::byte* pages, void* rows, int32_t head, int32_t num_heads,
                          float scale) {
    const int64_t row_elements = to.stride * geometry.head_dim;
    device_.float8_decode(
        {.codes = reinterpret_cast<const Float8*>(pages) + head * staged * half_elements,
         .codes_stride = staged * half_elements,
         .x = static_cast<std::byte*>(rows) + head * row_elements * dtype_bytes(geometry.dtype),
         .dtype = geometry.dtype,
         .x_stride = row_elements,
         .num_planes = num_heads,
         .count = count * half_elements,
         .scale = scale});
  };
  const auto copy = [&](const kernels::DeviceBuffer& from, void* rows, float KvScale::*side) {
    const auto* pages = from.as<std::byte>() + first * half_bytes;
    if (const auto& scales = geometry.float8; scales && form == Form::kDecoded) {
      if (!scales->by_head()) {
        return decode(pages, rows, 0, geometry.num_kv_heads, scales->of(layer, 0).*side);
      }
      for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
        decode(pages, rows, head, 1, scales->of(layer, geometry.first_kv_head + head).*side);
      }
      return;
    }
    device_.copy_rows({.destination = rows,
                       .destination_stride_bytes = to.stride * half_bytes / geometry.page_tokens,
                       .source = pages,
                       .source_stride_bytes = staged * half_bytes,
                       .row_bytes = count * half_bytes,
                       .num_rows = geometry.num_kv_heads});
  };
  copy(stage.k, to.k, &KvScale::k);
  copy(stage.v, to.v, &KvScale::v);
}

}  // namespace millrace::worker
