// SPDX-License-Identifier: Apache-2.0
// A prompt behind cached pages on a GPU, with a model that has sliding windows: its rows see what
// their windows reach of the prefix, like rows of a whole prompt. It also runs on a CPU, so that it
// tests something without a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "engine/kv_sink.h"
#include "kernels/cuda/cuda_device.h"
#include "plan/head_plan.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int64_t kTokens = 1200;
constexpr int64_t kPrefixTokens = 16 * kPageTokens;
using Rows = std::vector<BFloat16>;  // [tokens, head_dim]

// What a rank alone computes of a prompt.
struct HostCache {
  std::vector<std::vector<Rows>> k, v;  // by layer and kv head
  std::vector<std::vector<float>> page_scores;
};

// Copies layers, or their computed part, to the host.
class HostSink final : public KvSink {
 public:
  HostSink(kernels::Device& device, HostCache& cache) : device_(device), cache_(cache) {}

  Result<void> write_layer(const LayerKv& kv) override {
    const LocalKv& local = kv.local;
    cache_.k.emplace_back();
    cache_.v.emplace_back();
    for (int64_t head = 0; head < local.num_kv_heads; ++head) {
      const int64_t offset = head * local.head_rows() * local.row_bytes();
      for (const auto& [all, source] : {std::pair(&cache_.k, local.k), {&cache_.v, local.v}}) {
        Rows rows(static_cast<size_t>(kTokens * local.head_dim));
        device_.copy(rows.data() + (kTokens - local.num_rows) * local.head_dim,
                     static_cast<const std::byte*>(source) + offset,
                     local.num_rows * local.row_bytes());
        MR_RETURN_IF_ERROR(device_.synchronize(Deadline::after(kTimeout)));
        all->back().push_back(std::move(rows));
      }
    }
    cache_.page_scores.emplace_back(kv.page_scores.begin(), kv.page_scores.end());
    return {};
  }

 private:
  kernels::Device& device_;
  HostCache& cache_;
};

class HostPrefix final : public PrefixSource {
 public:
  HostPrefix(kernels::Device& device, const HostCache& cache, int64_t head_dim)
      : device_(device), cache_(cache), head_dim_(head_dim) {}

  Result<void> load(int32_t layer, int64_t first, int64_t count, const KvPlace& to) override {
    const auto at = static_cast<size_t>(layer);
    for (const auto& [all, place] : {std::pair(&cache_.k, to.k), {&cache_.v, to.v}}) {
      for (size_t head = 0; head < (*all)[at].size(); ++head) {
        device_.copy(
            static_cast<BFloat16*>(place) + static_cast<int64_t>(head) * to.stride * head_dim_,
            (*all)[at][head].data() + first * kPageTokens * head_dim_,
            count * kPageTokens * head_dim_ * int64_t{sizeof(BFloat16)});
      }
    }
    return device_.synchronize(Deadline::after(kTimeout));
  }

 private:
  kernels::Device& device_;
  const HostCache& cache_;
  int64_t head_dim_;
};

class DevicePrefix : public testing::TestWithParam<DeviceChoice::Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == DeviceChoice::Kind::kCuda && kernels::num_cuda_devices() == 0) {
      GTEST_SKIP() << "no GPU";
    }
    config_.head_dim = 64;
    config_.layer_windows = {100, 0};
    test::write_random_checkpoint(config_, DType::kBFloat16, 12, directory_.path());
  }

  // Behind the first pages of `cached`, or whole.
  PrefillResult prefill(const HostCache* cached, HostCache& cache) const {
    std::optional<PrefillResult> result;
    test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
      auto options = test::rank_options(directory_.path(), {1, 1});
      options.compute_dtype = DType::kBFloat16;
      options.device = {.kind = GetParam()};
      auto runtime = RankRuntime::create(std::move(world), options);
      MR_CHECK(runtime.ok(), "{}", runtime.error().to_string());
      RankRuntime& rank = **runtime;
      const auto plan = plan::make_head_plan("adaptive:0.05,0.3,4", config_, kTokens, 0);
      MR_CHECK(plan.ok(), "{}", plan.error().to_string());
      HostSink sink(rank.device(), cache);
      std::optional<HostPrefix> source;
      PromptPrefix prefix;
      if (cached != nullptr) {
        source.emplace(rank.device(), *cached, config_.head_dim);
        prefix.owners.assign(kPrefixTokens / kPageTokens, 0);
      }
      auto done = rank.engine().prefill({.token_ids = tokens(),
                                         .plan = &*plan,
                                         .sink = &sink,
                                         .prefix = prefix,
                                         .prefix_source = source ? &*source : nullptr},
                                        kTimeout);
      MR_CHECK(done.ok(), "{}", done.error().to_string());
      result = std::move(*done);
    });
    return std::move(*result);
  }

  std::vector<int32_t> tokens() const {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < kTokens; ++i) {
      all.push_back(static_cast<int32_t>(test::random_bits(5, static_cast<uint64_t>(i)) %
                                         static_cast<uint64_t>(config_.vocab_size)));
    }
    return all;
  }

  // For the rows behind the prefix.
  double largest_difference(const Rows& a, const Rows& b) const {
    double largest = 0;
    for (auto i = static_cast<size_t>(kPrefixTokens * config_.head_dim); i < a.size(); ++i) {
      largest = std::max(largest, std::abs(double{to_float(a[i])} - to_float(b[i])));
    }
    return largest;
  }

  model::ModelConfig config_ = test::tiny_model_config("MinistralForCausalLM");
  test::TempDirectory directory_;
};

TEST_P(DevicePrefix, RowsSeeWhatTheirWindowsReachOfCachedPages) {
  HostCache whole, behind;
  const PrefillResult expected = prefill(nullptr, whole);
  const PrefillResult actual = prefill(&whole, behind);
  ASSERT_EQ(behind.k.size(), whole.k.size());
  // Products with different numbers of rows are summed in another order, and in bfloat16 the
  // difference grows to some 0.05. A single row of V missing from the prefix moves elements by 0.5.
  constexpr double kTolerance = 1.0 / 8;
  for (size_t layer = 0; layer < whole.k.size(); ++layer) {
    for (size_t head = 0; head < whole.k[layer].size(); ++head) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << ", head " << head);
      EXPECT_LE(largest_difference(behind.k[layer][head], whole.k[layer][head]), kTolerance);
      EXPECT_LE(largest_difference(behind.v[layer][head], whole.v[layer][head]), kTolerance);
    }
    for (size_t i = 0; i < whole.page_scores[layer].size(); ++i) {
      EXPECT_NEAR(behind.page_scores[layer][i], whole.page_scores[layer][i], 0.01) << layer;
    }
  }
  EXPECT_EQ(actual.first_token, expected.first_token);
  EXPECT_NEAR(actual.top_tokens.front().logit, expected.top_tokens.front().logit, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Devices, DevicePrefix,
                         testing::Values(DeviceChoice::Kind::kCpu, DeviceChoice::Kind::kCuda),
                         [](const auto& kind) {
                           return kind.param == DeviceChoice::Kind::kCpu ? "cpu" : "cuda";
                         });

}  // namespace
}  // namespace millrace::engine
