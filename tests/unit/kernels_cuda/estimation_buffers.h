// SPDX-License-Identifier: Apache-2.0
// The host cases of estimation (tests/unit/kernels/estimation/estimation_case.h), in device memory.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/unit/kernels/estimation/estimation_case.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/device_index.h"

namespace millrace::kernels::cuda {

// Q and K of a case. The case must be in 16 bits and must not change any more.
class DeviceLayer {
 public:
  explicit DeviceLayer(EstimationCase& host) : host_(host) {
    const EstimationShape& shape = host.shape();
    const KvSlab kv = host.kv();
    q_ = upload(host.rows(), shape.num_tokens * shape.num_query_heads * shape.head_dim);
    k_ = upload(kv.k, kv.num_kv_heads * kv.token_stride * kv.head_dim);
  }

  KvSlab kv() const {
    KvSlab slab = host_.kv();
    slab.k = k_->data();
    return slab;
  }
  const void* rows() const { return q_->data(); }
  // The tiles' rows in their order, as the rank that owns them holds them.
  const void* rows_of(const std::vector<RowTile>& tiles) {
    std::vector<std::byte> storage;
    host_.rows_of(tiles, storage);
    part_ = upload(storage.data(), static_cast<int64_t>(storage.size() / sizeof(uint16_t)));
    return part_->data();
  }
  LastRows last() const {
    LastRows last = host_.last();
    const EstimationShape& shape = host_.shape();
    last.q = q_->data() + last.first_position * shape.num_query_heads * shape.head_dim;
    return last;
  }

 private:
  using Array = DeviceArray<uint16_t>;

  static std::unique_ptr<Array> upload(const void* data, int64_t count) {
    const auto* first = static_cast<const uint16_t*>(data);
    return std::make_unique<Array>(std::vector<uint16_t>(first, first + count));
  }

  EstimationCase& host_;
  std::unique_ptr<Array> q_, k_, part_;
};

// How many blocks only one of two sets of lists has, and how many the second has in all. A dense
// tile counts as its causal pages.
struct ListDifference {
  int64_t different = 0;
  int64_t total = 0;

  ListDifference& operator+=(const ListDifference& other) {
    different += other.different;
    total += other.total;
    return *this;
  }
};
inline ListDifference compare_blocks(const HeadLists& actual, const HeadLists& expected,
                                     const std::vector<RowTile>& tiles) {
  const auto pages = [&](const std::vector<int32_t>& list, const RowTile& tile) {
    if (list != std::vector<int32_t>{kDenseTile}) return list;
    std::vector<int32_t> all(
        static_cast<size_t>((tile.position + tile.num_rows + kPageTokens - 1) / kPageTokens));
    std::iota(all.begin(), all.end(), 0);
    return all;
  };
  ListDifference difference;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const auto a = pages(actual.blocks[i], tiles[i]);
    const auto b = pages(expected.blocks[i], tiles[i]);
    std::vector<int32_t> only;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(only));
    difference.different += static_cast<int64_t>(only.size());
    difference.total += static_cast<int64_t>(b.size());
  }
  return difference;
}

}  // namespace millrace::kernels::cuda
