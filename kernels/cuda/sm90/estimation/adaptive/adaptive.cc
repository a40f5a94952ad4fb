// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/adaptive/adaptive.h"

#include <algorithm>
#include <numbers>
#include <numeric>
#include <vector>

#include "common/units.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/runtime/upload_pack.h"
#include "kernels/cuda/sm90/estimation/adaptive/key_pages.h"
#include "kernels/cuda/sm90/estimation/adaptive/mass_choice.h"
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
struct ScanBatch {
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
      const PageBatch& batch = lists_.batches()[number];
      if (number == 0 || batch.group != lists_.batches()[number - 1].group) quantise_keys(batch);
      take_rows(batch);
      scan(batch, scan_batches_[number]);
      launch_choose_by_mass({.tiles = lists_.choice_tiles(batch),
                             .row_tiles = lists_.tiles(batch),
                             .sample = sample_,
                             .masses = masses_,
                             .groups = groups_,
                             .rules = rules_ + batch.first_head},
                            context_.stream);
      lists_.write(batch);
    }
  }

 private:
  static BatchBudget budget(const AdaptiveMemory& memory, const AdaptiveParams& params) {
    const int64_t rows = params.sampled_rows;
    const int64_t row_bytes =
        params.kv.head_dim * (sizeof(int8_t) + sizeof(__half)) + sizeof(float) + sizeof(int32_t);
    // For each row a page's mass and its share of a group, and for all rows together less than a
    // bit.
    const int64_t page_bytes = rows + ceil_div(rows * int64_t{sizeof(MassGroup)}, kGroupPages) + 1;
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
    pages_.num_pages = ceil_div(kv.num_tokens, kPageTokens);
    const int64_t places = kv_heads_at_once_ * pages_.num_places();
    pages_.keys =
        scratch.allocate<int8_t>(kv_heads_at_once_ * pages_.num_pages * kPageTokens * kv.head_dim);
    pages_.centres = scratch.allocate<__half>(places * kv.head_dim);
    pages_.steps = scratch.allocate<float>(places);

    const int64_t max_rows = lists_.max_over_batches(num_lists) * sample_.count;
    rows_ = {.rows = scratch.allocate<int32_t>(max_rows),
             .quantised = scratch.allocate<int8_t>(max_rows * kv.head_dim),
             .half = scratch.allocate<__half>(max_rows * kv.head_dim),
             .steps = scratch.allocate<float>(max_rows)};
    const int64_t max_masses = lists_.max_over_batches([&](const PageBatch& b) {
      return num_lists(b) * b.page_stride;
    }) * sample_.count;
    masses_ = scratch.allocate<uint8_t>(max_masses);
    groups_ = scratch.allocate<MassGroup>(max_masses / kGroupPages);
  }

  void upload() {
    std::vector<int32_t> unit_pages;
    std::vector<HeadsOfKv> kv_heads;
    for (const PageBatch& batch : lists_.batches()) {
      ScanBatch& scan = scan_batches_.emplace_back();
      scan.first_unit = unit_pages.size();
      scan.first_kv_head = kv_heads.size();
      add_units(batch, unit_pages);
      add_kv_heads(batch, kv_heads);
      for (size_t i = scan.first_kv_head; i < kv_heads.size(); ++i) {
        scan.max_heads = std::max(scan.max_heads, kv_heads[i].num_heads);
        ++scan.num_kv_heads;
      }
    }
    UploadPack pack;
    const auto unit_pages_at = pack.add(std::span(unit_pages));
    const auto kv_heads_at = pack.add(std::span(kv_heads));
    const auto rules_at = pack.add(std::span(heads_.rules));
    pack.send(context_.scratch);
    unit_pages_ = pack[unit_pages_at];
    kv_heads_ = pack[kv_heads_at];
    rules_ = pack[rules_at];
  }

  // Adds, for each unit of rows, the most pages that one of its rows may see.
  void add_units(const PageBatch& batch, std::vector<int32_t>& unit_pages) const {
    const auto tile_pages = lists_.tile_pages(batch);
    const int64_t num_rows = batch.num_tiles * sample_.count;
    const size_t first = unit_pages.size();
    unit_pages.resize(first + static_cast<size_t>(ceil_div(num_rows, int64_t{kUnitRows})));
    for (int32_t row = 0; row < num_rows; ++row) {
      int32_t& pages = unit_pages[first + static_cast<size_t>(row / kUnitRows)];
      pages = std::max(pages, tile_pages[static_cast<size_t>(sample_.tile(row))]);
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
    launch_key_pages(params_.kv, first, last - first + 1, pages_, context_.stream);
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

  void scan(const PageBatch& batch, const ScanBatch& scan) {
    const PageScanArguments arguments = {
        .rows = rows_,
        .tiles = lists_.tiles(batch),
        .num_tiles = batch.num_tiles,
        .sample = sample_,
        .num_heads = static_cast<int32_t>(batch.num_heads),
        .head_dim = params_.kv.head_dim,
        .kv_heads = kv_heads_ + scan.first_kv_head,
        .num_kv_heads = scan.num_kv_heads,
        .max_heads = scan.max_heads,
        .unit_pages = unit_pages_ + scan.first_unit,
        .page_steps = pages_.steps,
        .num_places = pages_.num_places(),
        .scale_log2 = params_.scale * std::numbers::log2e_v<float>,
        .page_stride = batch.page_stride,
        .masses = masses_,
        .groups = groups_,
    };
    const PageScanMaps maps = {
        .keys = int8_key_tensor_map(pages_.keys, kv_heads_at_once_, pages_.num_pages * kPageTokens,
                                    params_.kv.head_dim, kScanBoxKeys),
        .centres = half_map(pages_.centres, kv_heads_at_once_, pages_.num_places()),
        .rows = half_map(rows_.half, arguments.num_heads, arguments.num_rows())};
    launch_page_scan(arguments, maps, context_.stream);
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
  std::vector<ScanBatch> scan_batches_;

  // Device memory.
  KeyPages pages_;
  SampledRows rows_;
  const int32_t* unit_pages_ = nullptr;
  const HeadsOfKv* kv_heads_ = nullptr;
  const AdaptiveRule* rules_ = nullptr;
  uint8_t* masses_ = nullptr;
  MassGroup* groups_ = nullptr;
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
