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
#include "kernels/cuda/estimation/page_choice.h"
#include "kernels/cuda/estimation/representative_scores.h"
#include "kernels/cuda/estimation/representatives.h"
#include "kernels/cuda/tensor_map.h"

namespace millrace::kernels::cuda {
namespace {

int32_t causal_pages(const RowTile& tile) {
  return static_cast<int32_t>((tile.position + tile.num_rows - 1) / kPageTokens + 1);
}

// Consecutive heads of the problem and consecutive tiles.
struct Batch {
  size_t first_head = 0;
  size_t num_heads = 0;
  int64_t first_tile = 0;
  int64_t num_tiles = 0;
  int64_t page_stride = 0;  // the most pages of its tiles, padded
};

// As many consecutive tiles as fit into kScoreBytes with all heads: a row of Q holds all heads, and
// early tiles, which see few pages, do not pay for late ones. Where one tile of all heads does not
// fit, fewer heads. A head's lists are written tile after tile.
class Batches {
 public:
  // `row_bytes`: of a page's scores in all rows of a tile.
  Batches(std::span<const int32_t> tile_pages, size_t num_heads, int64_t row_bytes) {
    const int64_t most = kScoreBytes / row_bytes;
    const int64_t largest_tile =
        round_up(*std::max_element(tile_pages.begin(), tile_pages.end()), kScorePages);
    const auto heads_at_once =
        std::clamp<size_t>(static_cast<size_t>(most / largest_tile), 1, num_heads);
    for (size_t head = 0; head < num_heads; head += heads_at_once) {
      add_batches(tile_pages, head, std::min(heads_at_once, num_heads - head), most);
    }
  }

  auto begin() const { return batches_.begin(); }
  auto end() const { return batches_.end(); }

  // The most of count(batch) over all batches.
  template <typename Count>
  int64_t most(const Count& count) const {
    int64_t result = 0;
    for (const Batch& batch : batches_) result = std::max<int64_t>(result, count(batch));
    return result;
  }

 private:
  void add_batches(std::span<const int32_t> tile_pages, size_t first_head, size_t num_heads,
                   int64_t most) {
    const auto num_tiles = static_cast<int64_t>(tile_pages.size());
    for (int64_t first = 0; first < num_tiles;) {
      Batch batch = {.first_head = first_head, .num_heads = num_heads, .first_tile = first};
      for (int64_t tile = first; tile < num_tiles; ++tile) {
        const int64_t stride = std::max(
            batch.page_stride, round_up(tile_pages[static_cast<size_t>(tile)], kScorePages));
        const int64_t scores = stride * (batch.num_tiles + 1) * static_cast<int64_t>(num_heads);
        if (tile > first && scores > most) break;
        batch.page_stride = stride;
        ++batch.num_tiles;
      }
      batches_.push_back(batch);
      first += batch.num_tiles;
    }
  }

  std::vector<Batch> batches_;
};

class PageListBuilder {
 public:
  PageListBuilder(const PageListProblem& problem, Context& context)
      : problem_(problem),
        context_(context),
        row_outliers_(std::min(problem.row_outliers, kMostOutliers)),
        page_outliers_(std::min(problem.page_outliers, kMostOutliers)),
        num_pages_(ceil_div(problem.kv.num_tokens, kPageTokens)),
        tile_pages_(pages_of_tiles(problem.tiles)),
        batches_(tile_pages_, problem.heads.size(), rows_per_tile() * score_bytes()) {
    find_page_representatives();
    upload();
    allocate();
  }

  void build() {
    MR_CUDA_CHECK(
        cudaMemsetAsync(used_, 0, sizeof(*used_) * problem_.heads.size(), context_.stream));
    for (const Batch& batch : batches_) build_batch(batch);
  }

 private:
  static std::vector<int32_t> pages_of_tiles(std::span<const RowTile> tiles) {
    std::vector<int32_t> pages;
    for (const RowTile& tile : tiles) pages.push_back(causal_pages(tile));
    return pages;
  }

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

  template <typename T>
  const T* upload(const std::vector<T>& values) {
    return context_.scratch.upload(std::span(values));
  }

  void upload() {
    std::vector<int32_t> kv_heads, tile_rows;
    const int32_t heads_per_kv_head = problem_.num_query_heads / problem_.kv.num_kv_heads;
    for (const int32_t head : problem_.heads) kv_heads.push_back(head / heads_per_kv_head);
    for (const RowTile& tile : problem_.tiles) {
      tile_rows.push_back(static_cast<int32_t>(tile.num_rows));
    }
    heads_ = context_.scratch.upload(problem_.heads);
    kv_heads_ = upload(kv_heads);
    tiles_ = context_.scratch.upload(problem_.tiles);
    device_tile_pages_ = upload(tile_pages_);
    device_tile_rows_ = upload(tile_rows);
    gamma_ = context_.scratch.upload(problem_.gamma);
    top_k_ = context_.scratch.upload(problem_.top_k);
  }

  void allocate() {
    Scratch& scratch = context_.scratch;
    const auto num_tiles = [](const Batch& b) {
      return static_cast<int64_t>(b.num_heads) * b.num_tiles;
    };
    const auto num_rows = [&](const Batch& b) { return num_tiles(b) * rows_per_tile(); };
    rows_ = scratch.allocate<__half>(batches_.most(num_rows) * problem_.kv.head_dim);
    const int64_t num_scores =
        batches_.most([&](const Batch& b) { return num_rows(b) * b.page_stride; });
    if (by_mass()) {
      masses_ = scratch.allocate<uint8_t>(num_scores);
      groups_ = scratch.allocate<MassGroup>(num_scores / kScorePages);
    } else {
      scores_ = scratch.allocate<float>(num_scores);
    }
    chosen_ = scratch.allocate<uint32_t>(
        batches_.most([&](const Batch& b) { return num_tiles(b) * b.page_stride / 32; }));
    count_ = scratch.allocate<int32_t>(batches_.most(num_tiles));
    used_ = scratch.allocate<int64_t>(static_cast<int64_t>(problem_.heads.size()));
  }

  void build_batch(const Batch& batch) {
    launch_row_representatives({.q = problem_.q,
                                .num_query_heads = problem_.num_query_heads,
                                .head_dim = problem_.kv.head_dim,
                                .heads = heads_ + batch.first_head,
                                .num_heads = static_cast<int32_t>(batch.num_heads),
                                .tiles = tiles_ + batch.first_tile,
                                .num_tiles = batch.num_tiles,
                                .row_outliers = row_outliers_},
                               rows_, context_.stream);
    score(batch);
    choose(batch);
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

  void score(const Batch& batch) {
    const std::vector<int32_t> block_pages = pages_of_blocks(batch);
    const int64_t last_page_keys = problem_.kv.num_tokens - (num_pages_ - 1) * kPageTokens;
    const RepresentativeScoreArguments arguments = {
        .rows = rows_,
        .num_rows = batch.num_tiles * rows_per_tile(),
        .rows_per_tile = rows_per_tile(),
        .num_heads = static_cast<int32_t>(batch.num_heads),
        .head_dim = problem_.kv.head_dim,
        .kv_heads = kv_heads_ + batch.first_head,
        .tile_pages = device_tile_pages_ + batch.first_tile,
        .block_pages = upload(block_pages),
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

  void choose(const Batch& batch) {
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

  // The most pages that a row of each block of kScoreRows may see.
  std::vector<int32_t> pages_of_blocks(const Batch& batch) const {
    const int64_t num_rows = batch.num_tiles * rows_per_tile();
    std::vector<int32_t> pages(static_cast<size_t>(ceil_div(num_rows, kScoreRows)));
    for (int64_t tile = 0; tile < batch.num_tiles; ++tile) {
      const int64_t first = tile * rows_per_tile() / kScoreRows;
      const int64_t last = ((tile + 1) * rows_per_tile() - 1) / kScoreRows;
      for (auto block = static_cast<size_t>(first); block <= static_cast<size_t>(last); ++block) {
        pages[block] =
            std::max(pages[block], tile_pages_[static_cast<size_t>(batch.first_tile + tile)]);
      }
    }
    return pages;
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
  Batches batches_;

  // Device memory.
  CUtensorMap page_map_ = {};
  const int32_t* heads_ = nullptr;
  const int32_t* kv_heads_ = nullptr;
  const RowTile* tiles_ = nullptr;
  const int32_t* device_tile_pages_ = nullptr;
  const int32_t* device_tile_rows_ = nullptr;
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

void check_block_index(const IndexView& index, std::span<const RowTile> tiles,
                       std::span<const int32_t> heads, size_t num_settings) {
  MR_CHECK(static_cast<int64_t>(tiles.size()) == index.shape.num_tiles,
           "{} row tiles, {} in the index", tiles.size(), index.shape.num_tiles);
  MR_CHECK(heads.size() == num_settings, "{} heads, {} settings", heads.size(), num_settings);
  for (const int32_t head : heads) {
    MR_CHECK(head >= 0 && head < index.shape.num_heads, "head {} of {} in the index", head,
             index.shape.num_heads);
  }
}

}  // namespace millrace::kernels::cuda
