// Q and K of one layer for the tests of estimation, and an index of given capacity to fill.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/api/estimation.h"
#include "tests/unit/kernels/random_index.h"

namespace millrace::kernels {

struct EstimationShape {
  int64_t num_tokens = 0;
  int32_t num_query_heads = 1;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 32;
  DType dtype = DType::kFloat32;
};

// Random normal data. Change values through q() and k() before anything else is asked for.
class EstimationCase {
 public:
  EstimationCase(const EstimationShape& shape, uint64_t seed);

  float& q(int64_t row, int32_t head, int32_t d);
  float& k(int32_t kv_head, int64_t token, int32_t d);

  const EstimationShape& shape() const { return shape_; }
  std::vector<int32_t> all_heads() const;
  float scale() const;
  KvSlab kv();
  // All rows of the prompt; the tiles' rows in their order, as a rank that owns them has it.
  const void* rows();
  const void* rows_of(const std::vector<RowTile>& tiles, std::vector<std::byte>& storage);
  LastRows last();

 private:
  const void* narrowed(const std::vector<float>& values, std::vector<BFloat16>& storage) const;

  EstimationShape shape_;
  std::vector<float> q_;  // [num_tokens, num_query_heads, head_dim]
  std::vector<float> k_;  // [num_kv_heads, token_stride, head_dim]
  std::vector<BFloat16> q16_, k16_;
};

// An index to be filled, with guard values behind every list.
class IndexStorage {
 public:
  explicit IndexStorage(const IndexShape& shape);

  IndexView view();
  // What `head` holds; kDenseTile as in HeadLists.
  HeadLists lists(int32_t head);
  // Nothing behind the arrays was written.
  bool guards_intact() const;

 private:
  static constexpr int32_t kGuard = -77;

  IndexShape shape_;
  std::vector<Band> bands_;
  std::vector<int32_t> num_bands_, columns_, num_columns_, block_count_, blocks_;
  std::vector<int64_t> block_begin_;
};

// Local tiles of rank `rank` of `num_ranks` when stripes of `stripe_tiles` tiles are dealt in snake
// order, and their numbers in the prompt.
struct RankTiles {
  std::vector<RowTile> tiles;
  std::vector<int64_t> numbers;
};
RankTiles snake_tiles(int64_t num_tokens, int64_t stripe_tiles, int num_ranks, int rank);

bool operator==(const HeadLists& a, const HeadLists& b);
void PrintTo(const HeadLists& lists, std::ostream* out);

}  // namespace millrace::kernels
