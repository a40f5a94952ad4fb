// SPDX-License-Identifier: Apache-2.0
// Norms over the heads of all tensor-parallel ranks (ModelConfig::joint_qk_norm): what the ranks
// project, with their heads side by side, is what one rank projects. tests/models/architectures has
// Transformers' results for the same model.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "model/layer_forward.h"
#include "tests/support/random_data.h"

namespace millrace::model {
namespace {

constexpr int64_t kRows = 5;

struct Projected {
  std::vector<float> q, k, v;  // [kRows, heads, head_dim], [heads, kRows, head_dim] twice
  std::vector<float> squares;  // that the rank would sum over all
};

// One of several ranks; a test runs all of them one after another.
class Rank {
 public:
  Rank(kernels::Device& device, TensorParallel tp) {
    const std::string model = MILLRACE_SOURCE_DIR "/tests/models/architectures/minimax";
    auto loaded = load_model_weights(model, tp, DType::kFloat32, device, 1);
    EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
    weights_ = std::move(*loaded);
    auto forward = LayerForward::create(device, *weights_, kRows);
    EXPECT_TRUE(forward.ok());
    forward_ = std::make_unique<LayerForward>(std::move(*forward));
  }

  const ModelConfig& config() const { return weights_->config; }
  const ShardShape& shard() const { return weights_->shard; }

  // `sums`: the sums of the ranks' squares; empty if they are not known yet.
  Projected project(const std::vector<float>& sums = {}) {
    const auto hidden = test::random_normals(5, kRows * config().hidden_size);
    const std::vector<int32_t> positions = {0, 1, 17, 300, 2000};
    const int64_t head_elements = kRows * config().head_dim;
    const auto q_size = static_cast<size_t>(shard().num_query_heads * head_elements);
    const auto k_size = static_cast<size_t>(shard().num_kv_heads * head_elements);
    Projected out{.q = std::vector<float>(q_size),
                  .k = std::vector<float>(k_size),
                  .v = std::vector<float>(k_size),
                  .squares = {}};
    const auto result =
        forward_->qkv(/*layer=*/1, hidden.data(), kRows, positions.data(), kRows,
                      {.q = out.q.data(), .k = out.k.data(), .v = out.v.data(), .kv_stride = kRows},
                      [&](float* data, int64_t count) -> Result<void> {
                        out.squares.assign(data, data + count);
                        std::ranges::copy(sums, data);
                        return {};
                      });
    EXPECT_TRUE(result.ok());
    return out;
  }

 private:
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<LayerForward> forward_;
};

// Each row is normalised over the same number of heads. Products with different numbers of rows
// round differently.
void expect_near(const float* part, const float* whole, int64_t count) {
  for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(part[i], whole[i], 2e-5) << "element " << i;
}

class JointNormTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(JointNormTest, IsOverTheHeadsOfAllRanks) {
  const int32_t size = GetParam();
  const auto device = kernels::make_cpu_device({.num_threads = 1});
  Rank one(*device, {});
  const Projected whole = one.project();
  EXPECT_TRUE(whole.squares.empty());

  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<float> sums(2 * kRows);
  for (int32_t r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<Rank>(*device, TensorParallel{r, size}));
    const auto own = ranks.back()->project().squares;
    ASSERT_EQ(own.size(), sums.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
  }
  const int64_t dim = one.config().head_dim;
  for (const auto& rank : ranks) {
    const Projected part = rank->project(sums);
    const ShardShape& shard = rank->shard();
    const int64_t own_row = shard.num_query_heads * dim, row = one.shard().num_query_heads * dim;
    for (int64_t r = 0; r < kRows; ++r) {
      expect_near(part.q.data() + r * own_row,
                  whole.q.data() + r * row + shard.first_query_head * dim, own_row);
    }
    const int64_t first = shard.first_kv_head * kRows * dim;
    expect_near(part.k.data(), whole.k.data() + first, std::ssize(part.k));
    expect_near(part.v.data(), whole.v.data() + first, std::ssize(part.v));
  }
}

// With four ranks, each of the two kv heads is on two of them.
INSTANTIATE_TEST_SUITE_P(Ranks, JointNormTest, ::testing::Values(2, 4));

}  // namespace
}  // namespace millrace::model
