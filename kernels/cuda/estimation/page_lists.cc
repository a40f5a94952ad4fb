#include "kernels/cuda/estimation/page_lists.h"

#include <algorithm>
#include <numbers>
#include <vector>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/estimation/block_lists.h"
#include "kernels/cuda/estimation/last_rows.h"
#include "kernels/cuda/estimation/mass_choice.h"
#include "kernels/cuda/estimation/page_batches.h"
#include "kernels/cuda/estimation/page_choice.h"
#include "kernels/cuda/estimation/representative_scores.h"
#include "kernels/cuda/estimation/representatives.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/upload_pack.h"

namespace millrace::kernels::cuda {
namespace {

std::vector<int32_t> pages_of_tiles(std::span<const RowTile> tiles) {
  std::vector<int32_t> pages;
  for (const RowTile& tile : tiles) pages.push_back(static_cast<int32_t>(causal_pages(tile)));
  return pages;
}

// Of each block of kScoreRows rows the most pages that one of them may see.
void add_block_pages(std::span<const int32_t> tile_pages, int64_t rows_per_tile,
                     std::vector<int32_t>& block_pages) {
  const size_t first_block = block_pages.size();
  const int64_t num_rows = std::ssize(tile_pages) * rows_per_tile;
  block_pages.resize(first_block + static_cast<size_t>(ceil_div(num_rows, kScoreRows)));
  for (int64_t row = 0; row < num_rows; ++row) {
    int32_t& pages = block_pages[first_block + static_cast<size_t>(row / kScoreRows)];
    pages = std::max(pages, tile_pages[static_cast<size_t>(row / rows_per_tile)]);
  }
}

class PageListBuilder {
 public:
  PageListBuilder(const PageListProblem& problem, Context& context)
      : problem_(problem),
        context_(context),
        row_outliers_(std::min(problem.row_outliers, kMostOutliers)),
        page_outliers_(std::min(problem.page_outliers, kMostOutliers)),
        num_pages_(ceil_div(problem.kv.num_tokens, kPageTokens)),
        tile_pages_(pages_of_tiles(problem.tiles)),
        batches_(page_batches(tile_pages_, problem.heads.size(),
                              problem.score_bytes / (rows_per_tile() * score_bytes()))) {
    find_page_representatives();
    upload();
    allocate();
  }

  void build() {
    for (const PageBatch& batch : batches_) {
      represent_rows(batch);
      score(batch);
      choose(batch);
      list(batch);
    }
  }

 private:
  void find_page_representatives() {
    const KvSlab& kv = problem_.kv;
    const int32_t num_planes = kv.num_kv_heads * (page_outliers_ + 1);
    const int64_t num_places = round_up(num_pages_, kPlaceGroup);
    auto* pages = context_.scratch.allocate<__half>(num_planes * num_places * kv.head_dim);
    launch_page_representatives(kv, page_outliers_, pages, context_.stream);
    // As the keys of a slab: the copy engine moves 2-byte elements, whatever they mean.
    page_map_ = key_tensor_map(pages, {.k = pages,
                                       .dtype = DType::kFloat16,
                                       .num_kv_heads = num_planes,
                                       .head_dim = kv.head_dim,
                                       .num_tokens = num_places,
                                       .token_stride = num_places});
  }

  void upload() {
    std::vector<int32_t> kv_heads, tile_rows, block_pages;
    const int32_t heads_per_kv_head = problem_.num_query_heads / problem_.kv.num_kv_heads;
    for (const int32_t head : problem_.heads) kv_heads.push_back(head / heads_per_kv_head);
    for (const RowTile& tile : problem_.tiles) {
      tile_rows.push_back(static_cast<int32_t>(tile.num_rows));
    }
    for (PageBatch& batch : batches_) {
      batch.first_block = block_pages.size();
      add_block_pages(std::span(tile_pages_).subspan(batch.first_tile, batch.num_tiles),
                      rows_per_tile(), block_pages);
    }
    UploadPack pack;
    const auto heads_at = pack.add(problem_.heads);
    const auto kv_heads_at = pack.add(std::span(kv_heads));
    const auto tiles_at = pack.add(problem_.tiles);
    const auto tile_pages_at = pack.add(std::span(tile_pages_));
    const auto tile_rows_at = pack.add(std::span(tile_rows));
    const auto block_pages_at = pack.add(std::span(block_pages));
    const auto gamma_at = pack.add(problem_.gamma);
    const auto top_k_at = pack.add(problem_.top_k);
    pack.send(context_.scratch);
    heads_ = pack[heads_at];
    kv_heads_ = pack[kv_heads_at];
    tiles_ = pack[tiles_at];
    device_tile_pages_ = pack[tile_pages_at];
    device_tile_rows_ = pack[tile_rows_at];
    block_pages_ = pack[block_pages_at];
    gamma_ = pack[gamma_at];
    top_k_ = pack[top_k_at];
  }

  void allocate() {
    Scratch& scratch = context_.scratch;
    const auto most = [&](const auto& count) {
      int64_t result = 0;
      for (const PageBatch& batch : batches_) result = std::max<int64_t>(result, count(batch));
      return result;
    };
    const auto num_sets = [](const PageBatch& b) {
      return static_cast<int64_t>(b.num_heads) * b.num_tiles;
    };
    const int64_t most_rows = most(num_sets) * rows_per_tile();
    const int64_t most_pages =
        most([&](const PageBatch& b) { return num_sets(b) * b.page_stride; });
    const int64_t most_scores = most_pages * rows_per_tile();
    rows_ = scratch.allocate<__half>(most_rows * problem_.kv.head_dim);
    if (by_mass()) {
      masses_ = scratch.allocate<uint8_t>(most_scores);
      groups_ = scratch.allocate<MassGroup>(most_scores / kScorePages);
    } else {
      scores_ = scratch.allocate<float>(most_scores);
    }
    chosen_ = scratch.allocate<uint32_t>(most_pages / 32);
    count_ = scratch.allocate<int32_t>(most(num_sets));
    used_ = scratch.allocate<int64_t>(static_cast<int64_t>(problem_.heads.size()));
  }

  void represent_rows(const PageBatch& batch) {
    launch_row_representatives({.q = problem_.q,
                                .num_query_heads = problem_.num_query_heads,
                                .head_dim = problem_.kv.head_dim,
                                .heads = heads_ + batch.first_head,
                                .num_heads = static_cast<int32_t>(batch.num_heads),
                                .tiles = tiles_ + batch.first_tile,
                                .num_tiles = batch.num_tiles,
                                .row_outliers = row_outliers_,
                                .dtype = problem_.kv.dtype},
                               rows_, context_.stream);
  }

  void score(const PageBatch& batch) {
    const int64_t last_page_keys = problem_.kv.num_tokens - (num_pages_ - 1) * kPageTokens;
    const RepresentativeScoreArguments arguments = {
        .rows = rows_,
        .num_rows = batch.num_tiles * rows_per_tile(),
        .rows_per_tile = rows_per_tile(),
        .num_heads = static_cast<int32_t>(batch.num_heads),
        .head_dim = problem_.kv.head_dim,
        .kv_heads = kv_heads_ + batch.first_head,
        .tile_pages = device_tile_pages_ + batch.first_tile,
        .block_pages = block_pages_ + batch.first_block,
        .num_pages = static_cast<int32_t>(num_pages_),
        .last_page_keys = static_cast<int32_t>(last_page_keys),
        .page_outliers = page_outliers_,
        .scale_log2 = problem_.scale * std::numbers::log2e_v<float>,
        .page_stride = batch.page_stride,
        .scores = scores_,
        .masses = masses_,
        .groups = groups_,
    };
    if (by_mass()) {
      launch_page_masses(arguments, page_map_, context_.stream);
    } else {
      launch_pooled_scores(arguments, page_map_, context_.stream);
    }
  }

  void choose(const PageBatch& batch) {
    const ChoiceTiles tiles = {
        .page_stride = batch.page_stride,
        .rows_per_tile = rows_per_tile(),
        .num_heads = static_cast<int32_t>(batch.num_heads),
        .num_tiles = batch.num_tiles,
        .tile_pages = device_tile_pages_ + batch.first_tile,
        .tile_rows = device_tile_rows_ + batch.first_tile,
        .chosen = chosen_,
        .count = count_,
    };
    if (by_mass()) {
      launch_choose_by_mass({.tiles = tiles,
                             .masses = masses_,
                             .groups = groups_,
                             .gamma = gamma_ + batch.first_head},
                            context_.stream);
    } else {
      launch_choose_best({.tiles = tiles, .scores = scores_, .top_k = top_k_ + batch.first_head},
                         context_.stream);
    }
  }

  void list(const PageBatch& batch) {
    launch_block_lists({.index = problem_.index,
                        .heads = heads_ + batch.first_head,
                        .num_heads = static_cast<int32_t>(batch.num_heads),
                        .first_tile = batch.first_tile,
                        .num_tiles = batch.num_tiles,
                        .tile_pages = device_tile_pages_ + batch.first_tile,
                        .chosen = chosen_,
                        .words = batch.page_stride / 32,
                        .count = count_,
                        .used = used_ + batch.first_head},
                       context_.stream);
  }

  bool by_mass() const { return !problem_.gamma.empty(); }
  // Of a page and a row.
  int64_t score_bytes() const {
    return static_cast<int64_t>(by_mass() ? sizeof(uint8_t) : sizeof(float));
  }
  int32_t rows_per_tile() const { return row_outliers_ + 1; }

  const PageListProblem& problem_;
  Context& context_;
  int32_t row_outliers_;
  int32_t page_outliers_;
  int64_t num_pages_;
  std::vector<int32_t> tile_pages_;
  std::vector<PageBatch> batches_;

  // Device memory.
  CUtensorMap page_map_ = {};
  const int32_t* heads_ = nullptr;
  const int32_t* kv_heads_ = nullptr;
  const RowTile* tiles_ = nullptr;
  const int32_t* device_tile_pages_ = nullptr;
  const int32_t* device_tile_rows_ = nullptr;
  const int32_t* block_pages_ = nullptr;
  const float* gamma_ = nullptr;
  const int32_t* top_k_ = nullptr;
  __half* rows_ = nullptr;
  float* scores_ = nullptr;
  uint8_t* masses_ = nullptr;
  MassGroup* groups_ = nullptr;
  uint32_t* chosen_ = nullptr;
  int32_t* count_ = nullptr;
  int64_t* used_ = nullptr;
};

void check_tiles(const PageListProblem& problem) {
  for (const RowTile& tile : problem.tiles) {
    MR_CHECK(tile.num_rows > 0 && tile.num_rows <= kTileRows && tile.position >= 0 &&
                 tile.position + tile.num_rows <= problem.kv.num_tokens,
             "tile of {} rows at {} of {} tokens", tile.num_rows, tile.position,
             problem.kv.num_tokens);
  }
}

}  // namespace

void build_page_lists(const PageListProblem& problem, Context& context) {
  check_slab(problem.kv, problem.num_query_heads);
  check_tiles(problem);
  MR_CHECK(problem.kv.num_tokens <= kMostChoicePages * kPageTokens, "block lists of {} tokens",
           problem.kv.num_tokens);
  if (problem.heads.empty() || problem.tiles.empty()) return;
  PageListBuilder(problem, context).build();
}

}  // namespace millrace::kernels::cuda
