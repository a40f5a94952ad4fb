// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/adaptive/adaptive.h"

#include <algorithm>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include "common/units.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/runtime/upload_pack.h"
#include "kernels/cuda/sm90/estimation/adaptive/kept_mass.h"
#include "kernels/cuda/sm90/estimation/adaptive/key_pages.h"
#include "kernels/cuda/sm90/estimation/adaptive/mass_choice.h"
#include "kernels/cuda/sm90/estimation/adaptive/page_filter.h"
#include "kernels/cuda/sm90/estimation/adaptive/page_scan.h"
#include "kernels/cuda/sm90/estimation/block_lists.h"
#include "kernels/cuda/sm90/estimation/last_rows.h"
#include "kernels/cuda/sm90/estimation/page_lists.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

// The heads that scan, in the order of their kv heads: heads that read the same keys scan together,
// and keys are quantised for as many kv heads as there is room for.
struct ScanHeads {
  std::vector<int32_t> heads;
  std::vector<AdaptiveRule> rules;
  std::vector<int32_t> first_kv_heads;  // of each chunk of kv heads
  std::vector<size_t> chunk_sizes;      // query heads of each

  ScanHeads(const AdaptiveParams& params, int64_t kv_heads_at_once)
      : heads_per_kv_head(params.num_query_heads / params.kv.num_kv_heads) {
    std::vector<size_t> order;
    for (size_t number = 0; number < params.heads.size(); ++number) {
      if (!takes_everything(params.rules[number])) order.push_back(number);
    }
    std::ranges::stable_sort(order, {}, [&](size_t number) { return params.heads[number]; });
    for (const size_t number : order) {
      heads.push_back(params.heads[number]);
      rules.push_back(params.rules[number]);
      const int32_t kv = kv_head(heads.size() - 1);
      if (first_kv_heads.empty() || kv >= first_kv_heads.back() + kv_heads_at_once) {
        first_kv_heads.push_back(kv);
        chunk_sizes.push_back(0);
      }
      ++chunk_sizes.back();
    }
  }

  int32_t kv_head(size_t number) const { return heads[number] / heads_per_kv_head; }

  int32_t heads_per_kv_head;
};

// Where the small arrays of a batch begin among those of all batches.
struct BatchArrays {
  size_t first_unit = 0;
  size_t first_kv_head = 0;
  int32_t num_kv_heads = 0;
  int32_t max_heads = 0;  // of a kv head
};

class AdaptiveBuilder {
 public:
  AdaptiveBuilder(const AdaptiveMemory& memory, const AdaptiveParams& params, ScanHeads heads,
                  int32_t kv_heads_at_once, Context& context)
      : params_(params),
        context_(context),
        heads_(std::move(heads)),
        kv_heads_at_once_(kv_heads_at_once),
        sample_{params.sampled_rows},
        lists_({.tiles = params.tiles,
                .heads = heads_.heads,
                .group_sizes = heads_.chunk_sizes,
                .num_tokens = params.kv.num_tokens,
                .rows_per_tile = params.sampled_rows,
                .budget = budget(memory, params),
                .index = params.index},
               context) {
    allocate();
    upload();
  }

  void build() {
    for (size_t number = 0; number < lists_.batches().size(); ++number) {
      const PageBatch& pages = lists_.batches()[number];
      if (number == 0 || pages.group != lists_.batches()[number - 1].group) quantise_keys(pages);
      take_rows(pages);
      const ScanBatch batch = scan_batch(pages, arrays_[number]);
      launch_kept_mass(batch, keys_, kept_, context_.stream);
      launch_page_filter(batch, keys_, kept_, filter_maps(batch), scanned_, context_.stream);
      launch_page_scan(batch, keys_, {.keys = key_map(), .rows = row_map(batch)}, scanned_, masses_,
                       context_.stream);
      launch_choose_by_mass({.tiles = lists_.choice_tiles(pages),
                             .row_tiles = batch.tiles,
                             .sample = sample_,
                             .kept = kept_,
                             .scanned = scanned_.of_rows,
                             .masses = masses_,
                             .rules = batch.rules},
                            context_.stream);
      lists_.write(pages);
    }
  }

 private:
  static BatchBudget budget(const AdaptiveMemory& memory, const AdaptiveParams& params) {
    const int64_t rows = params.sampled_rows;
    const int64_t row_bytes = params.kv.head_dim * (sizeof(int8_t) + sizeof(__half)) +
                              sizeof(float) + sizeof(int32_t) + sizeof(KeptMass);
    // For each row a page's mass and two bits, and for all rows together less than a bit.
    const int64_t page_bytes = rows * int64_t{sizeof(MassSteps)} + ceil_div(rows, 4) + 1;
    return {.bytes = memory.batch_bytes,
            .bytes_per_page = page_bytes,
            .bytes_per_tile = rows * row_bytes};
  }

  static int64_t num_lists(const PageBatch& batch) {
    return static_cast<int64_t>(batch.num_heads) * batch.num_tiles;
  }

  void allocate() {
    Scratch& scratch = context_.scratch;
    const KvSlab& kv = params_.kv;
    keys_.pages = allocate_moments(ceil_div(kv.num_tokens, kPageTokens));
    keys_.spans = allocate_moments(whole_spans(keys_.pages.count));
    keys_.keys =
        scratch.allocate<int8_t>(kv_heads_at_once_ * keys_.pages.count * kPageTokens * kv.head_dim);

    const int64_t max_rows = lists_.max_over_batches(num_lists) * sample_.count;
    rows_ = {.rows = scratch.allocate<int32_t>(max_rows),
             .quantised = scratch.allocate<int8_t>(max_rows * kv.head_dim),
             .squares = scratch.allocate<__half>(max_rows * kv.head_dim),
             .steps = scratch.allocate<float>(max_rows)};
    kept_ = scratch.allocate<KeptMass>(max_rows);
    const int64_t max_masses = lists_.max_over_batches([&](const PageBatch& b) {
      return num_lists(b) * b.page_stride;
    }) * sample_.count;
    masses_ = scratch.allocate<MassSteps>(max_masses);
    scanned_.of_rows = scratch.allocate<uint64_t>(max_masses / kGroupPages);
    scanned_.of_units = scratch.allocate<uint64_t>(lists_.max_over_batches([&](const PageBatch& b) {
      const int64_t units = ceil_div(b.num_tiles * sample_.count, int64_t{kUnitRows});
      return static_cast<int64_t>(b.num_heads) * units * b.page_stride;
    }));
  }

  KeyMoments allocate_moments(int64_t count) const {
    KeyMoments moments = {.count = count};
    const int64_t places = kv_heads_at_once_ * moments.num_places();
    if (places == 0) return moments;
    moments.centres = context_.scratch.allocate<int8_t>(places * params_.kv.head_dim);
    moments.spreads = context_.scratch.allocate<__half>(places * params_.kv.head_dim);
    moments.steps = context_.scratch.allocate<VectorSteps>(places);
    return moments;
  }

  void upload() {
    std::vector<UnitPages> units;
    std::vector<HeadsOfKv> kv_heads;
    for (const PageBatch& batch : lists_.batches()) {
      BatchArrays& scan = arrays_.emplace_back();
      scan.first_unit = units.size();
      scan.first_kv_head = kv_heads.size();
      add_units(batch, units);
      add_kv_heads(batch, kv_heads);
      for (size_t i = scan.first_kv_head; i < kv_heads.size(); ++i) {
        scan.max_heads = std::max(scan.max_heads, kv_heads[i].num_heads);
        ++scan.num_kv_heads;
      }
    }
    UploadPack pack;
    const auto units_at = pack.add(std::span(units));
    const auto kv_heads_at = pack.add(std::span(kv_heads));
    const auto rules_at = pack.add(std::span(heads_.rules));
    pack.send(context_.scratch);
    units_ = pack[units_at];
    kv_heads_ = pack[kv_heads_at];
    rules_ = pack[rules_at];
  }

  void add_units(const PageBatch& batch, std::vector<UnitPages>& units) const {
    const auto tile_pages = lists_.tile_pages(batch);
    const int64_t num_rows = batch.num_tiles * sample_.count;
    const size_t first = units.size();
    units.resize(first + static_cast<size_t>(ceil_div(num_rows, int64_t{kUnitRows})),
                 {.fewest = std::numeric_limits<int32_t>::max()});
    for (int32_t row = 0; row < num_rows; ++row) {
      UnitPages& unit = units[first + static_cast<size_t>(row / kUnitRows)];
      const int32_t pages = tile_pages[static_cast<size_t>(sample_.tile(row))];
      unit.fewest = std::min(unit.fewest, pages);
      unit.most = std::max(unit.most, pages);
    }
  }

  void add_kv_heads(const PageBatch& batch, std::vector<HeadsOfKv>& kv_heads) const {
    int32_t before = -1;
    for (size_t head = 0; head < batch.num_heads; ++head) {
      const int32_t kv = heads_.kv_head(batch.first_head + head);
      if (kv != before) {
        kv_heads.push_back({.plane = kv - heads_.first_kv_heads[batch.group],
                            .first_head = static_cast<int32_t>(head)});
      }
      ++kv_heads.back().num_heads;
      before = kv;
    }
  }

  // Quantises the kv heads from the first to the last that a chunk reads; `batch` is the chunk's
  // first.
  void quantise_keys(const PageBatch& batch) {
    const int32_t first = heads_.first_kv_heads[batch.group];
    const int32_t last = heads_.kv_head(batch.first_head + heads_.chunk_sizes[batch.group] - 1);
    launch_key_pages(params_.kv, first, last - first + 1, keys_, context_.stream);
  }

  void take_rows(const PageBatch& batch) {
    launch_sampled_rows({.q = params_.q,
                         .num_query_heads = params_.num_query_heads,
                         .head_dim = params_.kv.head_dim,
                         .heads = lists_.heads(batch),
                         .num_heads = static_cast<int32_t>(batch.num_heads),
                         .tiles = lists_.tiles(batch),
                         .num_tiles = batch.num_tiles,
                         .sample = sample_,
                         .dtype = params_.kv.dtype},
                        rows_, context_.stream);
  }

  ScanBatch scan_batch(const PageBatch& pages, const BatchArrays& arrays) const {
    return {.rows = rows_,
            .tiles = lists_.tiles(pages),
            .num_tiles = pages.num_tiles,
            .sample = sample_,
            .num_heads = static_cast<int32_t>(pages.num_heads),
            .head_dim = params_.kv.head_dim,
            .kv_heads = kv_heads_ + arrays.first_kv_head,
            .num_kv_heads = arrays.num_kv_heads,
            .max_heads = arrays.max_heads,
            .units = units_ + arrays.first_unit,
            .rules = rules_ + pages.first_head,
            .scale_log2 = params_.scale * std::numbers::log2e_v<float>,
            .page_stride = pages.page_stride};
  }

  CUtensorMap key_map() const {
    return int8_key_tensor_map(keys_.keys, kv_heads_at_once_, keys_.pages.count * kPageTokens,
                               params_.kv.head_dim, kPageTokens);
  }

  PageFilterMaps filter_maps(const ScanBatch& batch) const {
    const auto pages = moment_maps(keys_.pages);
    return {.pages = pages,
            .spans = keys_.spans.count > 0 ? moment_maps(keys_.spans) : pages,
            .rows = row_map(batch),
            .squares = half_map(rows_.squares, batch.num_heads, batch.num_rows())};
  }

  CUtensorMap row_map(const ScanBatch& batch) const {
    return int8_key_tensor_map(rows_.quantised, batch.num_heads, batch.num_rows(), batch.head_dim,
                               kUnitRows);
  }

  MomentMaps moment_maps(const KeyMoments& moments) const {
    const int64_t places = moments.num_places();
    return {.centres = int8_key_tensor_map(moments.centres, kv_heads_at_once_, places,
                                           params_.kv.head_dim, kGroupPages),
            .spreads = half_map(moments.spreads, kv_heads_at_once_, places)};
  }

  // Like the keys of a slab, in boxes of 64: the copy engine moves 2-byte elements, whatever their
  // type.
  CUtensorMap half_map(const __half* values, int32_t num_planes, int64_t num_vectors) const {
    static_assert(kGroupPages == kPageTokens && kUnitRows == kPageTokens);
    return key_tensor_map(values, {.k = values,
                                   .dtype = DType::kFloat16,
                                   .num_kv_heads = num_planes,
                                   .head_dim = params_.kv.head_dim,
                                   .num_tokens = num_vectors,
                                   .token_stride = num_vectors});
  }

  const AdaptiveParams& params_;
  Context& context_;
  ScanHeads heads_;
  int32_t kv_heads_at_once_;
  RowSample sample_;
  PageLists lists_;
  std::vector<BatchArrays> arrays_;

  // Device memory.
  KeyPages keys_;
  SampledRows rows_;
  const UnitPages* units_ = nullptr;
  const HeadsOfKv* kv_heads_ = nullptr;
  const AdaptiveRule* rules_ = nullptr;
  KeptMass* kept_ = nullptr;
  ScannedPages scanned_;
  MassSteps* masses_ = nullptr;
};

void list_everything(const AdaptiveParams& params, Context& context) {
  std::vector<int32_t> heads;
  for (size_t number = 0; number < params.heads.size(); ++number) {
    if (takes_everything(params.rules[number])) heads.push_back(params.heads[number]);
  }
  if (heads.empty()) return;
  launch_dense_lists(params.index, context.scratch.upload(std::span(heads)),
                     static_cast<int32_t>(heads.size()), context.stream);
}

}  // namespace

void build_adaptive_within(const AdaptiveMemory& memory, const AdaptiveParams& params,
                           Context& context) {
  check_adaptive(params);
  check_slab(params.kv, params.num_query_heads);
  if (params.tiles.empty()) return;
  list_everything(params, context);
  const int64_t kv_head_bytes = round_up(params.kv.num_tokens, kPageTokens) * params.kv.head_dim;
  const auto kv_heads_at_once = static_cast<int32_t>(
      std::clamp<int64_t>(memory.key_bytes / kv_head_bytes, 1, params.kv.num_kv_heads));
  ScanHeads heads(params, kv_heads_at_once);
  if (heads.heads.empty()) return;
  AdaptiveBuilder(memory, params, std::move(heads), kv_heads_at_once, context).build();
}

void build_adaptive(const AdaptiveParams& params, Context& context) {
  build_adaptive_within({}, params, context);
}

}  // namespace millrace::kernels::cuda
