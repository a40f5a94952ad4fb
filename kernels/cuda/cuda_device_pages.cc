// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_device_pages.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/page_tokens.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/cuda/sm90/pages/page_launches.h"

namespace millrace::kernels {
namespace {

using cuda::PageCounter;

// At most this many layers are enqueued before the slot choice made during the first of them must
// be done.
constexpr int32_t kMaxKeptLayers = 4;
// Events and lists are reused after this many layers.
constexpr size_t kRing = 8;

class Event {
 public:
  Event() { MR_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void record(cudaStream_t stream) { MR_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  // Makes later work in `stream` wait for the event. Does nothing if it was never recorded.
  void hold(cudaStream_t stream) const { MR_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// The portions of an order of `num_pages` pages, and their units.
struct Portions {
  explicit Portions(int64_t num_pages) {
    for (int64_t pages = 0; pages < num_pages;) {
      const int64_t end = std::min(num_pages, pages + PageRuleNumbers::portion(pages));
      for (; pages < end; pages = std::min(end, pages + cuda::kUnitPages)) {
        unit_pages.push_back(static_cast<int32_t>(pages));
      }
      ends.push_back(static_cast<int32_t>(end));
      unit_ends.push_back(static_cast<int32_t>(std::ssize(unit_pages)));
    }
    unit_pages.push_back(static_cast<int32_t>(num_pages));
  }
  std::vector<int32_t> ends, unit_ends, unit_pages;
};

class CudaDevicePages final : public DevicePages {
 public:
  CudaDevicePages(Device& device, Device* ahead, const DevicePagesShape& shape,
                  const DevicePagesOptions& options)
      : device_(device),
        shape_(shape),
        options_(options),
        num_kept_(shape.kept_pages()),
        filled_(static_cast<size_t>(shape.num_layers)),
        stream_(device.gpu_stream()->handle) {
    int index = device.gpu_stream()->gpu;
    MR_CUDA_CHECK(cudaSetDevice(index));
    MR_CUDA_CHECK(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, index));
    ahead_ = ahead != nullptr ? ahead->gpu_stream()->handle : own_ahead_.emplace().get();
    kept_layers_ = std::clamp(shape.num_layers / 2, 2, kMaxKeptLayers);
  }
  ~CudaDevicePages() override {
    cudaStreamSynchronize(stream_);
    cudaStreamSynchronize(ahead_);
    cudaStreamSynchronize(copies_.get());
  }

  Result<void> allocate() {
    const int64_t all = shape_.all_pages(), pages = shape_.num_pages();
    const int64_t of_layer = shape_.num_query_heads * pages;
    const Portions portions(pages);
    const int64_t units = portions.unit_ends.back();
    const int64_t parts = units * shape_.num_query_heads;
    const int64_t heads = shape_.num_kv_heads;
    MR_RETURN_IF_ERROR(take(slots_, options_.num_slots * shape_.page_bytes()));
    MR_RETURN_IF_ERROR(take(digests_, all * 3 * shape_.head_dim * 4));
    for (auto* table : {&heat_, &last_, &foreseen_}) MR_RETURN_IF_ERROR(take(*table, all * 4));
    MR_RETURN_IF_ERROR(take(place_, all * 8));
    MR_RETURN_IF_ERROR(take(expected_, shape_.num_layers * heads * 4));
    MR_RETURN_IF_ERROR(take(slot_page_, options_.num_slots * 4));
    MR_RETURN_IF_ERROR(take(cursors_, 2 * 4));
    MR_RETURN_IF_ERROR(take(counters_, static_cast<int64_t>(PageCounter::kCount) * 8));
    MR_RETURN_IF_ERROR(take(lists_, int64_t{kRing * sizeof(cuda::AdmittedPages)}));
    MR_RETURN_IF_ERROR(take(estimates_, 2 * 4 * of_layer * 4));
    MR_RETURN_IF_ERROR(take(orders_, (kRing + 1) * heads * (pages + 3) * 4));
    MR_RETURN_IF_ERROR(take(parts_, parts * (2 + shape_.head_dim) * 4));
    MR_RETURN_IF_ERROR(take(log_mass_, of_layer * 4));
    MR_RETURN_IF_ERROR(take(enough_, std::ssize(portions.ends) * shape_.num_query_heads * 4));
    MR_RETURN_IF_ERROR(take(arrivals_, heads * 4));
    const int64_t numbers = 2 * std::ssize(portions.ends) + units + 1;
    MR_RETURN_IF_ERROR(take(portions_, numbers * 4));
    MR_RETURN_IF_ERROR(set_scales());
    upload(portions);
    place_at_host();
    return {};
  }

  Result<void> set_digests(int32_t layer, int32_t kv_head,
                           std::span<const float> digests) override {
    const int64_t size = shape_.num_pages() * 3 * shape_.head_dim;
    MR_CHECK(std::ssize(digests) == size, "{} numbers of digests, {} expected", digests.size(),
             size);
    MR_CUDA_CHECK(
        cudaMemcpyAsync(digests_.as<float>() + (layer * shape_.num_kv_heads + kv_head) * size,
                        digests.data(), digests.size_bytes(), cudaMemcpyDefault, stream_));
    return device_.synchronize(Deadline::after(std::chrono::seconds(30)));
  }

  void fill_layer(int32_t layer) override {
    const auto l = static_cast<size_t>(layer);
    if (!holds_all() || filled_[l]) return;
    filled_[l] = true;
    cuda::fill_slots(tables(), layer_slots_[l], layer_slots_[l + 1], stream_);
  }

  Result<void> complete(Deadline deadline) override {
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) fill_layer(layer);
    return device_.synchronize(deadline);
  }

  void begin_layer(int32_t layer) override {
    if (layer == 0) ++token_;
    ++turn_;
    was_foreseen_ = std::exchange(foresees_, false);
    if (turn_ >= kept_layers_) ring(chosen_, turn_ - kept_layers_).hold(stream_);
    ring(begun_, turn_).record(stream_);
    ring(begun_, turn_).hold(ahead_);
    layer_ = layer;
  }

  void foresee(int32_t layer, const float* q) override {
    MR_CHECK(layer == layer_ + 1 && layer < shape_.num_layers, "layer {} behind layer {}", layer,
             layer_);
    foresees_ = true;
    const auto estimates = estimates_at(1, /*bounds=*/false);
    const auto order = order_at(kRing);
    cuda::estimate_pages(tables(), layer, q, shape_.scale, estimates, nullptr, ahead_);
    cuda::order_pages(tables(), estimates, nullptr, order, ahead_);
    admit(layer, /*foreseen=*/true, order);
  }

  void attend(const Step& step) override {
    MR_CHECK(step.layer == layer_, "layer {} was begun, attends in {}", layer_, step.layer);
    rank(step);
    const auto order = this_order();
    const int64_t parts = int64_t{portions_view_.num_units} * shape_.num_query_heads;
    const bool float8 = shape_.float8 != nullptr;
    const float* layer_scales =
        float8 ? scales_.as<float>() + int64_t{step.layer} * shape_.num_kv_heads * 2 : nullptr;
    cuda::attend_pages({.tables = tables(),
                        .estimates = estimates_at(0, options_.rule.proven),
                        .order = order,
                        .portions = portions_view_,
                        .rule = options_.rule,
                        .layer = step.layer,
                        .token = token_,
                        .first_token = step.first_token,
                        .foreseen = was_foreseen_,
                        .max_pages = static_cast<int32_t>(
                            step.max_pages == 0 ? shape_.num_pages()
                                                : std::min(step.max_pages, shape_.num_pages())),
                        .scale = shape_.scale,
                        .page_scales = layer_scales,
                        .q = step.q,
                        .tail_lse = step.tail_lse,
                        .tail_out = step.tail_out,
                        .sinks = step.sinks,
                        .out = step.out,
                        .lse = step.lse,
                        .part_max = parts_.as<float>(),
                        .part_sum = parts_.as<float>() + parts,
                        .part_out = parts_.as<float>() + 2 * parts,
                        .log_mass = log_mass_.as<float>(),
                        .enough = enough_.as<int32_t>(),
                        .arrivals = arrivals_.as<int32_t>()},
                       shape_.dtype, float8, num_sms_, stream_);
    if (was_foreseen_ || holds_all() || step.max_pages != 0) return;
    ring(attended_, turn_).record(stream_);
    ring(attended_, turn_).hold(ahead_);
    admit(step.layer, /*foreseen=*/false, order);
  }

  Result<PageLists> order(const Step& step, Deadline deadline) override {
    rank(step);
    MR_ASSIGN_OR_RETURN(const auto counts, by_head(this_order().count, deadline));
    return lists(counts, deadline);
  }

  Result<PageLists> pages_read(Deadline deadline) override {
    MR_ASSIGN_OR_RETURN(auto attended, by_head(this_order().attended, deadline));
    for (int32_t& count : attended) count = std::max(count, 0);  // kNotEnough
    return lists(attended, deadline);
  }

  Result<DevicePagesStats> stats(Deadline deadline) override {
    ring(begun_, turn_).record(ahead_);
    ring(begun_, turn_).hold(stream_);
    std::array<unsigned long long, static_cast<size_t>(PageCounter::kCount)> counters{};
    device_.copy(counters.data(), counters_.data(), counters_.bytes());
    MR_RETURN_IF_ERROR(device_.synchronize(deadline));
    const auto count = [&](PageCounter counter) {
      return static_cast<int64_t>(counters[static_cast<size_t>(counter)]);
    };
    return DevicePagesStats{.tokens = token_ - first_token_ + 1,
                            .pages_read = count(PageCounter::kRead),
                            .pages_spared = count(PageCounter::kSpared),
                            .from_host = count(PageCounter::kFromHost),
                            .pages_of_foreseen = count(PageCounter::kOfForeseen),
                            .pages_foreseen = count(PageCounter::kForeseen),
                            .copied = count(PageCounter::kCopied),
                            .skipped = count(PageCounter::kSkipped)};
  }

  void reset_stats() override {
    first_token_ = token_ + 1;
    MR_CUDA_CHECK(
        cudaMemsetAsync(counters_.data(), 0, static_cast<size_t>(counters_.bytes()), stream_));
  }

 private:
  void rank(const Step& step) {
    if (step.first_token > 0) {
      const bool reaches = step.first_token < shape_.num_tokens;
      const int64_t first = reaches ? step.first_token / kPageTokens : shape_.num_pages();
      cuda::list_pages(tables(), step.layer, static_cast<int32_t>(first), this_order(),
                       arrivals_.as<int32_t>(), stream_);
      return;
    }
    const auto estimates = estimates_at(0, options_.rule.proven);
    cuda::estimate_pages(tables(), step.layer, step.q, shape_.scale, estimates,
                         arrivals_.as<int32_t>(), stream_);
    cuda::order_pages(tables(), estimates, step.tail_lse, this_order(), stream_);
  }

  // The numbers of the kept pages, ascending. Sets layer_slots_.
  std::vector<int32_t> kept_numbers() {
    std::vector<int32_t> numbers;
    int32_t number = 0;
    layer_slots_ = {0};
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
        for (int64_t page = 0; page < shape_.num_pages(); ++page, ++number) {
          if (shape_.has_page(layer, h, page)) numbers.push_back(number);
        }
      }
      layer_slots_.push_back(static_cast<int32_t>(numbers.size()));
    }
    return numbers;
  }

  void place_at_host() {
    const auto t = tables();
    std::vector<uint64_t> places(static_cast<size_t>(shape_.all_pages()));
    const auto kept = kept_numbers();
    for (const int32_t number : kept) {
      places[static_cast<size_t>(number)] = t.host_place(number);
    }
    device_.copy(place_.data(), places.data(), place_.bytes());
    for (auto* table : {&last_, &slot_page_}) {
      MR_CUDA_CHECK(cudaMemsetAsync(table->data(), 0xff, static_cast<size_t>(table->bytes()),
                                    stream_));  // -1
    }
    if (holds_all()) {
      // No slot is free: each is reserved for its page, which is copied later.
      const auto num_slots = static_cast<int32_t>(options_.num_slots);
      device_.copy(slot_page_.data(), kept.data(), slot_page_.bytes());
      device_.copy(t.free_slot, &num_slots, sizeof num_slots);
    }
    MR_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  // Copies one number of each kv head to the host.
  Result<std::vector<int32_t>> by_head(const int32_t* numbers, Deadline deadline) {
    std::vector<int32_t> all(static_cast<size_t>(shape_.num_kv_heads));
    device_.copy(all.data(), numbers, std::ssize(all) * 4);
    MR_RETURN_IF_ERROR(device_.synchronize(deadline));
    return all;
  }

  // The first `counts` pages of each kv head's order.
  Result<PageLists> lists(std::span<const int32_t> counts, Deadline deadline) {
    const auto pages = static_cast<size_t>(shape_.num_pages());
    std::vector<int32_t> all(counts.size() * pages);
    device_.copy(all.data(), this_order().pages, std::ssize(all) * 4);
    MR_RETURN_IF_ERROR(device_.synchronize(deadline));
    PageLists lists;
    for (size_t h = 0; h < counts.size(); ++h) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(h * pages);
      lists.emplace_back(first, first + counts[h]);
    }
    return lists;
  }

  template <typename T>
  static T& ring(std::array<T, kRing>& events, int64_t turn) {
    return events[static_cast<size_t>(turn) % kRing];
  }
  bool holds_all() const { return options_.num_slots == num_kept_; }

  // Uploads the scales of all layers and heads, if pages are in 8-bit floats.
  Result<void> set_scales() {
    if (shape_.float8 == nullptr) return {};
    std::vector<KvScale> scales;
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        scales.push_back(shape_.float8->of(layer, shape_.first_kv_head + head));
      }
    }
    static_assert(sizeof(KvScale) == 2 * sizeof(float));
    const auto bytes = static_cast<int64_t>(scales.size() * sizeof(KvScale));
    MR_RETURN_IF_ERROR(take(scales_, bytes));
    MR_CUDA_CHECK(cudaMemcpyAsync(scales_.data(), scales.data(), static_cast<size_t>(bytes),
                                  cudaMemcpyDefault, stream_));
    return device_.synchronize(Deadline::after(std::chrono::seconds(30)));
  }

  // Allocates zeroed memory.
  Result<void> take(DeviceBuffer& buffer, int64_t bytes) {
    MR_ASSIGN_OR_RETURN(buffer, device_.allocate(bytes));
    MR_CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(bytes), stream_));
    return {};
  }

  void upload(const Portions& portions) {
    std::vector<int32_t> numbers = portions.ends;
    numbers.insert(numbers.end(), portions.unit_ends.begin(), portions.unit_ends.end());
    numbers.insert(numbers.end(), portions.unit_pages.begin(), portions.unit_pages.end());
    MR_CUDA_CHECK(cudaMemcpyAsync(portions_.data(), numbers.data(), numbers.size() * 4,
                                  cudaMemcpyDefault, stream_));
    MR_CUDA_CHECK(cudaStreamSynchronize(stream_));
    const auto* const first = portions_.as<int32_t>();
    const auto count = std::ssize(portions.ends);
    portions_view_ = {.ends = first,
                      .unit_ends = first + count,
                      .unit_pages = first + 2 * count,
                      .num_portions = static_cast<int32_t>(count),
                      .num_units = portions.unit_ends.back()};
  }

  cuda::PageTables tables() const {
    return {.num_layers = shape_.num_layers,
            .num_kv_heads = shape_.num_kv_heads,
            .group = shape_.group(),
            .head_dim = shape_.head_dim,
            .num_pages = static_cast<int32_t>(shape_.num_pages()),
            .num_tokens = shape_.num_tokens,
            .page_bytes = shape_.page_bytes(),
            .num_slots = static_cast<int32_t>(options_.num_slots),
            .all_kept = num_kept_ == shape_.all_pages(),
            .host = options_.host,
            .slots = slots_.as<std::byte>(),
            .digests = digests_.as<float>(),
            .place = place_.as<uint64_t>(),
            .heat = heat_.as<float>(),
            .last = last_.as<int32_t>(),
            .foreseen = foreseen_.as<int32_t>(),
            .expected = expected_.as<int32_t>(),
            .slot_page = slot_page_.as<int32_t>(),
            .free_slot = cursors_.as<int32_t>(),
            .hand = cursors_.as<int32_t>() + 1,
            .counters = counters_.as<unsigned long long>()};
  }

  cuda::PageEstimates estimates_at(int64_t place, bool bounds) const {
    const int64_t size = shape_.num_query_heads * shape_.num_pages();
    float* const first = estimates_.as<float>() + place * 4 * size;
    return {.bound = bounds ? first : nullptr,
            .centre = first + size,
            .spread = first + 2 * size,
            .rank = first + 3 * size};
  }

  cuda::PageOrder order_at(size_t place) const {
    const int64_t size = shape_.num_kv_heads * shape_.num_pages();
    int32_t* const first =
        orders_.as<int32_t>() + static_cast<int64_t>(place) * (size + 3 * shape_.num_kv_heads);
    int32_t* const counts = first + size;
    return {.pages = first,
            .count = counts,
            .attended = counts + shape_.num_kv_heads,
            .read = counts + 2 * shape_.num_kv_heads};
  }
  cuda::PageOrder this_order() const { return order_at(static_cast<size_t>(turn_) % kRing); }

  // Enqueues the choice of slots in ahead_, and the copies that it chose in copies_.
  void admit(int32_t layer, bool foreseen, const cuda::PageOrder& order) {
    auto* const list = lists_.as<cuda::AdmittedPages>() + num_lists_ % kRing;
    const auto number = static_cast<int32_t>(++num_lists_);
    cuda::admit_pages({.tables = tables(),
                       .layer = layer,
                       .token = token_,
                       .foreseen = foreseen,
                       .order = order,
                       .first_kept_layer = layer_,
                       .num_kept_layers = kept_layers_,
                       .list = list,
                       .list_number = number},
                      ahead_);
    ring(chosen_, turn_).record(ahead_);
    ring(listed_, static_cast<int64_t>(num_lists_)).record(ahead_);
    ring(listed_, static_cast<int64_t>(num_lists_)).hold(copies_.get());
    cuda::copy_admitted(tables(), list, number, copies_.get());
  }

  Device& device_;
  const DevicePagesShape shape_;
  const DevicePagesOptions options_;
  const int64_t num_kept_;
  std::vector<bool> filled_;          // by layer; used if all pages have slots
  std::vector<int32_t> layer_slots_;  // [layers + 1]; likewise: where the slots of each begin
  int num_sms_ = 0;
  int32_t kept_layers_ = 0;
  cudaStream_t stream_ = nullptr, ahead_ = nullptr;
  std::optional<cuda::Stream> own_ahead_;
  cuda::Stream copies_;
  // By turn; a turn is one layer of one token.
  std::array<Event, kRing> begun_, attended_, chosen_;
  std::array<Event, kRing> listed_;  // by list
  DeviceBuffer slots_, digests_, heat_, last_, foreseen_, place_, expected_, slot_page_, cursors_,
      counters_, lists_, estimates_, orders_, parts_, log_mass_, enough_, arrivals_, portions_,
      scales_;
  cuda::PagePortions portions_view_{};
  int32_t token_ = -1, first_token_ = 0, layer_ = -1;
  int64_t turn_ = -1;
  size_t num_lists_ = 0;
  bool foresees_ = false;      // foresee() was called for the next layer
  bool was_foreseen_ = false;  // for the layer begun last
};

}  // namespace

Result<std::unique_ptr<DevicePages>> make_cuda_device_pages(Device& device, Device* ahead,
                                                            const DevicePagesShape& shape,
                                                            const DevicePagesOptions& options) {
  const int32_t group = shape.num_kv_heads == 0 ? 0 : shape.group();
  if (!device.gpu_stream() || (ahead != nullptr && !ahead->gpu_stream())) {
    return error(Errc::kUnsupported, "{}: not a CUDA device", device.info().name);
  }
  const bool built = shape.head_dim == 64 || shape.head_dim == 128 || shape.head_dim == 256;
  const int32_t most = cuda::max_page_group(shape.head_dim);
  if (!built || group < 1 || group > most || shape.dtype == DType::kFloat32 ||
      shape.num_pages() < 1 || shape.num_pages() > cuda::kMaxOrderedPages) {
    return error(
        Errc::kUnsupported,
        "pages of head dim {}, {} query heads a kv head, {}, {} pages: the GPU takes 64, 128 "
        "or 256, up to {}, 16 bits, up to {}",
        shape.head_dim, group, dtype_name(shape.dtype), shape.num_pages(), most,
        cuda::kMaxOrderedPages);
  }
  MR_CHECK(shape.float8 == nullptr || std::ssize(shape.float8->all()) >= shape.num_layers,
           "{} scales, {} layers", shape.float8->all().size(), shape.num_layers);
  if (options.num_slots < 1 || options.num_slots > shape.kept_pages()) {
    return error(Errc::kInvalidArgument, "{} slots for {} pages", options.num_slots,
                 shape.kept_pages());
  }
  auto pages = std::make_unique<CudaDevicePages>(device, ahead, shape, options);
  MR_RETURN_IF_ERROR(pages->allocate());
  return std::unique_ptr<DevicePages>(std::move(pages));
}

}  // namespace millrace::kernels
