// SPDX-License-Identifier: Apache-2.0
// Attention of the dense last rows, dealt out over ranks by kv head, equals bit for bit what one
// rank computes from all rows.
#include "engine/dense_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "engine/ranks/device_groups.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/index/coverage.h"
#include "tests/support/far_device.h"
#include "tests/support/random_data.h"
#include "tests/unit/engine/ranks/late_communicator.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

constexpr int32_t kHeadDim = 16;
// Far from any attention output.
constexpr float kUntouched = 1e30F;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(*result);
}
void must(Result<void> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
}

struct Heads {
  int32_t query = 0, kv = 0;
};

// Q [tokens, query heads, dim], K and V [kv heads, tokens, dim] of a prompt.
struct Layer {
  Layer(int64_t tokens, Heads heads_of_layer)
      : num_tokens(tokens),
        heads(heads_of_layer),
        q(test::random_normals(1, tokens * heads.query * kHeadDim)),
        k(test::random_normals(2, tokens * heads.kv * kHeadDim)),
        v(test::random_normals(3, tokens * heads.kv * kHeadDim)) {}

  int64_t row() const { return int64_t{heads.query} * kHeadDim; }
  std::vector<float> q_rows(TokenRange range) const {
    return {q.begin() + range.begin * row(), q.begin() + range.end * row()};
  }

  int64_t num_tokens;
  Heads heads;
  std::vector<float> q, k, v;
};

// The results on one rank.
struct Outcome {
  std::vector<float> last_q;   // [last rows, query heads, dim]
  std::vector<float> out;      // [own rows, query heads, dim]
  std::vector<float> lse;      // [query heads, dense rows]
  std::vector<int64_t> pairs;  // by dealt head
  int64_t num_others = 0;      // row tiles
};

class RankRows {
 public:
  RankRows(const Layer& layer, bool far, std::unique_ptr<comm::Communicator> world, int num_ranks)
      : layer_(layer),
        grid_(must(RankGrid::create(std::move(world), {.tp = 1, .cp = num_ranks}, ample()))),
        device_(make_device(far)),
        groups_(make_groups(*device_, grid_, far)),
        partition_(layer.num_tokens, num_ranks, /*stripe_tokens=*/64),
        rows_(must(DenseRows::create(*device_, *groups_.cp, partition_,
                                     {.num_query_heads = layer.heads.query,
                                      .num_kv_heads = layer.heads.kv,
                                      .head_dim = kHeadDim,
                                      .scale = 0.25F}))) {
    must(rows_.take_buffers());
    must(rows_.connect(ample()));
  }

  int rank() const { return grid_.cp().rank(); }

  Outcome run() {
    Outcome outcome;
    const auto q = on_device(own_q());
    must(rows_.send_queries(q.data(), ample()));
    rows_.finish_queries();
    const auto last = rows_.last_rows();
    outcome.last_q = on_host<float>(last.q, last.num_rows * layer_.row());
    outcome.num_others = std::ssize(rows_.others(partition_.tiles(rank())));
    if (rows_.dealt()) attend(outcome);
    must(grid_.world().barrier(ample()));  // no rank leaves while another still sends
    return outcome;
  }

 private:
  static std::unique_ptr<kernels::Device> make_device(bool far) {
    auto device = kernels::make_cpu_device({.num_threads = 1});
    if (far) return std::make_unique<test::FarDevice>(std::move(device));
    return device;
  }

  static DeviceGroups make_groups(kernels::Device& device, const RankGrid& grid, bool far) {
    auto groups = must(make_device_groups(device, grid, /*own_gpu=*/false, ample()));
    return far ? test::late(device, std::move(groups)) : std::move(groups);
  }

  void attend(Outcome& outcome) {
    const auto k = on_device(layer_.k), v = on_device(layer_.v);
    const std::vector<float> untouched(own_q().size(), kUntouched);
    const auto out = on_device(untouched);
    const auto pairs = must(device_->allocate(rows_.num_dealt_heads() * int64_t{sizeof(int64_t)}));
    must(rows_.attend({.k = k.data(),
                       .v = v.data(),
                       .num_kv_heads = layer_.heads.kv,
                       .head_dim = kHeadDim,
                       .num_tokens = layer_.num_tokens,
                       .token_stride = layer_.num_tokens},
                      /*window=*/0, /*sinks=*/nullptr, pairs.as<int64_t>(), ample()));
    rows_.finish(out.data());
    outcome.out = on_host<float>(out.data(), std::ssize(untouched));
    outcome.lse = on_host<float>(rows_.lse(), layer_.heads.query * rows_.num_rows());
    outcome.pairs = on_host<int64_t>(pairs.data(), rows_.num_dealt_heads());
  }

  std::vector<float> own_q() const {
    std::vector<float> own;
    for (const auto& range : partition_.ranges(rank())) {
      const auto rows = layer_.q_rows(range);
      own.insert(own.end(), rows.begin(), rows.end());
    }
    return own;
  }

  kernels::DeviceBuffer on_device(const std::vector<float>& values) {
    auto buffer = must(device_->allocate(std::ssize(values) * int64_t{sizeof(float)}));
    device_->copy(buffer.data(), values.data(), buffer.bytes());
    must(device_->synchronize(ample()));
    return buffer;
  }

  template <typename T>
  std::vector<T> on_host(const void* data, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    device_->copy(values.data(), data, count * int64_t{sizeof(T)});
    must(device_->synchronize(ample()));
    return values;
  }

  const Layer& layer_;
  RankGrid grid_;
  std::unique_ptr<kernels::Device> device_;
  DeviceGroups groups_;
  Partition partition_;
  DenseRows rows_;
};

std::vector<Outcome> on_ranks(const Layer& layer, int num_ranks, bool far) {
  std::vector<Outcome> outcomes(static_cast<size_t>(num_ranks));
  test::run_ranks(num_ranks, [&](std::unique_ptr<comm::Communicator> world) {
    RankRows rows(layer, far, std::move(world), num_ranks);
    outcomes[static_cast<size_t>(rows.rank())] = rows.run();
  });
  return outcomes;
}

// All rows of the prompt, densely, on one device.
struct Whole {
  explicit Whole(const Layer& layer)
      : out(layer.q.size()), lse(static_cast<size_t>(layer.heads.query * layer.num_tokens)) {
    const auto device = kernels::make_cpu_device({.num_threads = 1});
    const auto tiles = kernels::tile_rows(layer.num_tokens);
    const auto index = must(LayerIndex::create(*device, plan::HeadPlan(1, layer.heads.query, {}), 0,
                                               layer.heads.query, layer.num_tokens, tiles));
    std::vector<int32_t> heads(static_cast<size_t>(layer.heads.query));
    std::iota(heads.begin(), heads.end(), 0);
    const std::vector forms(heads.size(), kernels::dense_form(layer.num_tokens));
    device->build_closed_form(
        {.num_tokens = layer.num_tokens, .heads = heads, .forms = forms, .index = index.view()});
    device->attention({.q = layer.q.data(),
                       .num_rows = layer.num_tokens,
                       .num_query_heads = layer.heads.query,
                       .scale = 0.25F,
                       .kv = {.k = layer.k.data(),
                              .v = layer.v.data(),
                              .num_kv_heads = layer.heads.kv,
                              .head_dim = kHeadDim,
                              .num_tokens = layer.num_tokens,
                              .token_stride = layer.num_tokens},
                       .tiles = tiles,
                       .index = index.view(),
                       .out = out.data(),
                       .lse = lse.data()});
  }

  std::vector<float> out, lse;
};

// Ranks; heads; whether the device has separate memory and runs collectives concurrently.
class DenseRowsTest : public testing::TestWithParam<std::tuple<int, Heads, bool>> {
 protected:
  template <typename Body>
  void for_lengths(Body&& body) {
    const auto& [num_ranks, heads, far] = GetParam();
    for (const int64_t num_tokens : {1, 64, 65, 130, 191, 715}) {
      SCOPED_TRACE(num_tokens);
      const Layer layer(num_tokens, heads);
      body(layer, Partition(num_tokens, num_ranks, 64), on_ranks(layer, num_ranks, far));
    }
  }
};

TEST_P(DenseRowsTest, EveryRankHasTheLastQueries) {
  for_lengths([](const Layer& layer, const Partition&, const std::vector<Outcome>& outcomes) {
    const int64_t first = std::max(layer.num_tokens - kernels::kLastRows, int64_t{0});
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome.last_q, layer.q_rows({first, layer.num_tokens}));
    }
  });
}

TEST_P(DenseRowsTest, AttendBitForBitAsOnOneRankAndLeaveOtherRowsAlone) {
  for_lengths(
      [](const Layer& layer, const Partition& partition, const std::vector<Outcome>& outcomes) {
        const Whole whole(layer);
        const int64_t first_dense = kernels::first_dense_position(layer.num_tokens);
        for (int rank = 0; rank < std::ssize(outcomes); ++rank) {
          SCOPED_TRACE(rank);
          const float* row = outcomes[static_cast<size_t>(rank)].out.data();
          for (const int32_t position : partition.positions(rank)) {
            const float* expected = whole.out.data() + position * layer.row();
            for (int64_t i = 0; i < layer.row(); ++i, ++row) {
              ASSERT_EQ(*row, position < first_dense ? kUntouched : expected[i]) << position;
            }
          }
        }
      });
}

TEST_P(DenseRowsTest, EveryRankHasTheLogSumExpOfAllHeads) {
  for_lengths([](const Layer& layer, const Partition&, const std::vector<Outcome>& outcomes) {
    const Whole whole(layer);
    const int64_t first_dense = kernels::first_dense_position(layer.num_tokens);
    std::vector<float> expected;
    for (int32_t h = 0; h < layer.heads.query; ++h) {
      const auto head = whole.lse.begin() + h * layer.num_tokens;
      expected.insert(expected.end(), head + first_dense, head + layer.num_tokens);
    }
    for (const auto& outcome : outcomes) EXPECT_EQ(outcome.lse, expected);
  });
}

TEST_P(DenseRowsTest, CoverEachPairOnOneRankInSharesThatDifferByAKvHeadAtMost) {
  for_lengths([](const Layer& layer, const Partition&, const std::vector<Outcome>& outcomes) {
    int64_t head_pairs = 0;
    for (const auto& tile : kernels::tile_rows(layer.num_tokens)) {
      if (tile.position >= kernels::first_dense_position(layer.num_tokens)) {
        head_pairs += kernels::causal_pairs(tile);
      }
    }
    int64_t num_heads = 0, most = 0, fewest = layer.heads.query;
    for (const auto& outcome : outcomes) {
      const auto own = std::ssize(outcome.pairs);
      EXPECT_EQ(outcome.pairs, std::vector(outcome.pairs.size(), head_pairs));
      num_heads += own;
      most = std::max<int64_t>(most, own);
      fewest = std::min<int64_t>(fewest, own);
    }
    EXPECT_EQ(num_heads, layer.heads.query);
    EXPECT_LE(most - fewest, layer.heads.query / layer.heads.kv);
  });
}

TEST_P(DenseRowsTest, LeaveTheOtherRowTilesToTheirOwners) {
  for_lengths([](const Layer& layer, const Partition&, const std::vector<Outcome>& outcomes) {
    int64_t num_others = 0;
    for (const auto& outcome : outcomes) num_others += outcome.num_others;
    EXPECT_EQ(num_others, kernels::first_dense_position(layer.num_tokens) / kernels::kTileRows);
  });
}

// Numbers of heads that the ranks divide evenly, that they do not, and that are smaller than the
// number of ranks.
INSTANTIATE_TEST_SUITE_P(Grids, DenseRowsTest,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::Values(Heads{8, 4}, Heads{9, 3}, Heads{4, 1}),
                                          testing::Bool()),
                         [](const auto& job) {
                           const Heads heads = std::get<1>(job.param);
                           return fmt::format("{}_ranks_{}_heads_on_{}{}", std::get<0>(job.param),
                                              heads.query, heads.kv,
                                              std::get<2>(job.param) ? "_far" : "");
                         });

TEST(DenseRows, OfOneRankAttendWithAllOthers) {
  const Layer layer(715, {8, 4});
  const auto outcomes = on_ranks(layer, 1, /*far=*/true);
  EXPECT_EQ(outcomes[0].num_others, 12);
  EXPECT_TRUE(outcomes[0].out.empty());  // not dealt out
  EXPECT_EQ(outcomes[0].last_q, layer.q_rows({715 - 64, 715}));
}

}  // namespace
}  // namespace millrace::engine
