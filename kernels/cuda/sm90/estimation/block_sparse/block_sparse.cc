// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "common/units.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/runtime/upload_pack.h"
#include "kernels/cuda/sm90/estimation/block_sparse/page_choice.h"
#include "kernels/cuda/sm90/estimation/block_sparse/pooled_means.h"
#include "kernels/cuda/sm90/estimation/block_sparse/pooled_scores.h"
#include "kernels/cuda/sm90/estimation/last_rows.h"
#include "kernels/cuda/sm90/estimation/page_lists.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

// The most memory that the scores of a batch may take.
constexpr int64_t kScoreBytes = int64_t{512} << 20;

class BlockSparseBuilder {
 public:
  BlockSparseBuilder(const BlockSparseParams& params, Context& context)
      : params_(params),
        context_(context),
        all_heads_{params.heads.size()},
        lists_({.tiles = params.tiles,
                .heads = params.heads,
                .group_sizes = all_heads_,
                .num_tokens = params.kv.num_tokens,
                .budget = {.bytes = kScoreBytes,
                           .bytes_per_page = sizeof(float),
                           .bytes_per_tile = params.kv.head_dim * int64_t{sizeof(__half)}},
                .index = params.index},
               context) {
    pool_pages();
    upload();
    const auto num_tiles = [](const PageBatch& b) {
      return static_cast<int64_t>(b.num_heads) * b.num_tiles;
    };
    tile_means_ =
        context.scratch.allocate<__half>(lists_.max_over_batches(num_tiles) * params.kv.head_dim);
    scores_ = context.scratch.allocate<float>(
        lists_.max_over_batches([&](const PageBatch& b) { return num_tiles(b) * b.page_stride; }));
  }

  void build() {
    for (size_t number = 0; number < lists_.batches().size(); ++number) {
      const PageBatch& batch = lists_.batches()[number];
      pool_tiles(batch);
      score(batch, first_blocks_[number]);
      launch_choose_best({.tiles = lists_.choice_tiles(batch),
                          .scores = scores_,
                          .top_k = top_k_ + batch.first_head},
                         context_.stream);
      lists_.write(batch);
    }
  }

 private:
  void pool_pages() {
    const KvSlab& kv = params_.kv;
    const int64_t num_pages = ceil_div(kv.num_tokens, kPageTokens);
    auto* means = context_.scratch.allocate<__half>(kv.num_kv_heads * num_pages * kv.head_dim);
    launch_page_means(kv, means, context_.stream);
    // Like the keys of a slab: the copy engine moves 2-byte elements, whatever their type.
    page_map_ = key_tensor_map(means, {.k = means,
                                       .dtype = DType::kFloat16,
                                       .num_kv_heads = kv.num_kv_heads,
                                       .head_dim = kv.head_dim,
                                       .num_tokens = num_pages,
                                       .token_stride = num_pages});
  }

  void upload() {
    std::vector<int32_t> kv_heads, block_pages;
    const int32_t heads_per_kv_head = params_.num_query_heads / params_.kv.num_kv_heads;
    for (const int32_t head : params_.heads) kv_heads.push_back(head / heads_per_kv_head);
    for (const PageBatch& batch : lists_.batches()) {
      first_blocks_.push_back(block_pages.size());
      auto pages = lists_.tile_pages(batch);
      while (!pages.empty()) {
        const auto block = pages.first(std::min<size_t>(pages.size(), kPooledBlockTiles));
        block_pages.push_back(*std::max_element(block.begin(), block.end()));
        pages = pages.subspan(block.size());
      }
    }
    UploadPack pack;
    const auto kv_heads_at = pack.add(std::span(kv_heads));
    const auto block_pages_at = pack.add(std::span(block_pages));
    const auto top_k_at = pack.add(params_.top_k);
    pack.send(context_.scratch);
    kv_heads_ = pack[kv_heads_at];
    block_pages_ = pack[block_pages_at];
    top_k_ = pack[top_k_at];
  }

  void pool_tiles(const PageBatch& batch) {
    launch_tile_means({.q = params_.q,
                       .num_query_heads = params_.num_query_heads,
                       .head_dim = params_.kv.head_dim,
                       .heads = lists_.heads(batch),
                       .num_heads = static_cast<int32_t>(batch.num_heads),
                       .tiles = lists_.tiles(batch),
                       .num_tiles = batch.num_tiles,
                       .dtype = params_.kv.dtype},
                      tile_means_, context_.stream);
  }

  void score(const PageBatch& batch, size_t first_block) {
    launch_pooled_scores({.tiles = tile_means_,
                          .num_tiles = batch.num_tiles,
                          .num_heads = static_cast<int32_t>(batch.num_heads),
                          .head_dim = params_.kv.head_dim,
                          .kv_heads = kv_heads_ + batch.first_head,
                          .tile_pages = lists_.choice_tiles(batch).tile_pages,
                          .block_pages = block_pages_ + first_block,
                          .page_stride = batch.page_stride,
                          .scores = scores_},
                         page_map_, context_.stream);
  }

  const BlockSparseParams& params_;
  Context& context_;
  std::vector<size_t> all_heads_;  // one group
  PageLists lists_;
  std::vector<size_t> first_blocks_;  // of each batch, among those of all

  // Device memory.
  CUtensorMap page_map_ = {};
  const int32_t* kv_heads_ = nullptr;
  const int32_t* block_pages_ = nullptr;
  const int32_t* top_k_ = nullptr;
  __half* tile_means_ = nullptr;
  float* scores_ = nullptr;
};

}  // namespace

void build_block_sparse(const BlockSparseParams& params, Context& context) {
  check_block_index(params.index, params.tiles, params.heads, params.top_k.size());
  check_slab(params.kv, params.num_query_heads);
  if (params.heads.empty() || params.tiles.empty()) return;
  BlockSparseBuilder(params, context).build();
}

}  // namespace millrace::kernels::cuda
