#include "tests/unit/kernels/estimation_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>

namespace millrace::kernels {
namespace {

constexpr int64_t kStrideSlack = 5;  // token_stride > num_tokens

}  // namespace

EstimationCase::EstimationCase(const EstimationShape& shape, uint64_t seed)
    : shape_(shape),
      q_(test::random_normals(seed, shape.num_tokens * shape.num_query_heads * shape.head_dim)),
      k_(test::random_normals(
          seed + 1, (shape.num_tokens + kStrideSlack) * shape.num_kv_heads * shape.head_dim)) {}

float& EstimationCase::q(int64_t row, int32_t head, int32_t d) {
  return q_[static_cast<size_t>((row * shape_.num_query_heads + head) * shape_.head_dim + d)];
}

float& EstimationCase::k(int32_t kv_head, int64_t token, int32_t d) {
  const int64_t stride = shape_.num_tokens + kStrideSlack;
  return k_[static_cast<size_t>((kv_head * stride + token) * shape_.head_dim + d)];
}

std::vector<int32_t> EstimationCase::all_heads() const {
  std::vector<int32_t> heads(static_cast<size_t>(shape_.num_query_heads));
  std::iota(heads.begin(), heads.end(), 0);
  return heads;
}

float EstimationCase::scale() const {
  return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
}

const void* EstimationCase::narrowed(const std::vector<float>& values,
                                     std::vector<BFloat16>& storage) const {
  if (shape_.dtype == DType::kFloat32) return values.data();
  if (storage.empty()) storage = test::narrow(values);
  return storage.data();
}

KvSlab EstimationCase::kv() {
  return {.k = narrowed(k_, k16_),
          .v = nullptr,  // estimation never reads V
          .dtype = shape_.dtype,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .num_tokens = shape_.num_tokens,
          .token_stride = shape_.num_tokens + kStrideSlack};
}

const void* EstimationCase::rows() {
  return narrowed(q_, q16_);
}

const void* EstimationCase::rows_of(const std::vector<RowTile>& tiles,
                                    std::vector<std::byte>& storage) {
  const int64_t row_bytes = shape_.num_query_heads * shape_.head_dim * dtype_bytes(shape_.dtype);
  const auto* all = static_cast<const std::byte*>(rows());
  for (const RowTile& tile : tiles) {
    const std::byte* first = all + tile.position * row_bytes;
    storage.insert(storage.end(), first, first + tile.num_rows * row_bytes);
  }
  return storage.data();
}

LastRows EstimationCase::last() {
  const int64_t num_rows = std::min(kLastRows, shape_.num_tokens);
  const int64_t first = shape_.num_tokens - num_rows;
  const int64_t row_bytes = shape_.num_query_heads * shape_.head_dim * dtype_bytes(shape_.dtype);
  return {.q = static_cast<const std::byte*>(rows()) + first * row_bytes,
          .num_rows = num_rows,
          .first_position = first,
          .num_query_heads = shape_.num_query_heads,
          .scale = scale()};
}

IndexStorage::IndexStorage(const IndexShape& shape)
    : shape_(shape),
      bands_(static_cast<size_t>(shape.num_heads * shape.max_bands + 1), {kGuard, kGuard}),
      num_bands_(static_cast<size_t>(shape.num_heads)),
      columns_(static_cast<size_t>(shape.num_heads * shape.max_columns + 1), kGuard),
      num_columns_(static_cast<size_t>(shape.num_heads)),
      block_count_(static_cast<size_t>(shape.num_heads * shape.num_tiles + 1), kGuard),
      blocks_(static_cast<size_t>(shape.num_heads * shape.max_blocks + 1), kGuard),
      block_begin_(static_cast<size_t>(shape.num_heads * shape.num_tiles + 1), kGuard) {}

IndexView IndexStorage::view() {
  return {.shape = shape_,
          .bands = bands_.data(),
          .num_bands = num_bands_.data(),
          .columns = columns_.data(),
          .num_columns = num_columns_.data(),
          .block_count = block_count_.data(),
          .block_begin = block_begin_.data(),
          .blocks = blocks_.data()};
}

HeadLists IndexStorage::lists(int32_t head) {
  const HeadIndex index = view().head(head);
  HeadLists lists;
  lists.bands.assign(index.bands, index.bands + index.num_bands);
  lists.columns.assign(index.columns, index.columns + index.num_columns);
  for (int64_t tile = 0; tile < shape_.num_tiles; ++tile) {
    if (index.block_count[tile] == kDenseTile) {
      lists.blocks.push_back({kDenseTile});
    } else {
      const int32_t* first = index.blocks + index.block_begin[tile];
      lists.blocks.emplace_back(first, first + index.block_count[tile]);
    }
  }
  return lists;
}

bool IndexStorage::guards_intact() const {
  return bands_.back() == Band{kGuard, kGuard} && columns_.back() == kGuard &&
         block_count_.back() == kGuard && blocks_.back() == kGuard && block_begin_.back() == kGuard;
}

RankTiles snake_tiles(int64_t num_tokens, int64_t stripe_tiles, int num_ranks, int rank) {
  RankTiles owned;
  const std::vector<RowTile> all = tile_rows(num_tokens);
  int64_t local_row = 0;
  for (size_t number = 0; number < all.size(); ++number) {
    const int64_t stripe = static_cast<int64_t>(number) / stripe_tiles;
    const int64_t turn = stripe / num_ranks;
    const int64_t place = stripe % num_ranks;
    if ((turn % 2 == 0 ? place : num_ranks - 1 - place) != rank) continue;
    RowTile tile = all[number];
    tile.local_row = local_row;
    local_row += tile.num_rows;
    owned.tiles.push_back(tile);
    owned.numbers.push_back(static_cast<int64_t>(number));
  }
  return owned;
}

bool operator==(const HeadLists& a, const HeadLists& b) {
  return a.bands == b.bands && a.columns == b.columns && a.blocks == b.blocks;
}

void PrintTo(const HeadLists& lists, std::ostream* out) {
  *out << "bands";
  for (const Band& band : lists.bands) *out << " [" << band.lo << ", " << band.hi << "]";
  *out << " columns";
  for (const int32_t column : lists.columns) *out << " " << column;
  for (const auto& tile : lists.blocks) {
    *out << "\n  tile:";
    for (const int32_t block : tile) *out << " " << block;
  }
}

}  // namespace millrace::kernels
