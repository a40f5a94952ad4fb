// SPDX-License-Identifier: Apache-2.0
// Groups whose KV cache is in 8-bit floats: what decode nodes find, on every grid and behind a
// prefix.

#include <algorithm>
#include <cmath>
#include <string>

#include "common/kv_scales.h"
#include "kernels/ref/operations.h"
#include "kvclient/kv_client.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/worker/group/group_service_case.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;

constexpr int32_t kLayers = 2;
constexpr int32_t kHeads = 4;
constexpr int kTokens = 700;
constexpr int64_t kPages = 11;
constexpr uint64_t kMaxPositions = 32768;  // of the model

// All pages, [layers, kv heads, pages, K then V], as they travel.
using Cache = std::vector<std::byte>;

// A prompt, and then the same prompt again, on a group whose model has scales in its checkpoint.
struct Outcome {
  protocol::PrefillDone first, again;
  Cache first_cache, again_cache;
  uint64_t max_prompt_tokens = 0;
  uint64_t origin = 0;
};

class GroupFloat8Test : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto config = test::tiny_model_config();
    auto tensors = test::random_tensors(config, 3);
    tensors["model.layers.0.self_attn.k_scale"] = {{}, {0.0185546875F}};
    tensors["model.layers.0.self_attn.v_scale"] = {{}, {0.0078125F}};
    tensors["model.layers.1.self_attn.v_scale"] = {{}, {0.01171875F}};
    test::write_checkpoint(config, tensors, DType::kFloat32, model(false).path(), 1);
    // As compressed-tensors stores scales of heads.
    tensors["model.layers.0.self_attn.k_scale"] = {
        {kHeads, 1, 1}, {0.0185546875F, 0.03125F, 0.0625F, 0.009765625F}};
    tensors["model.layers.1.self_attn.v_scale"] = {{kHeads, 1, 1},
                                                   {0.01171875F, 0.5F, 0.0078125F, 0.046875F}};
    test::write_checkpoint(config, tensors, DType::kFloat32, model(true).path(), 1);
  }
  // `by_head`: with a scale for each kv head, in one of two layers for K, in the other for V.
  static test::TempDirectory& model(bool by_head) {
    static test::TempDirectory by_layer, of_heads;
    return by_head ? of_heads : by_layer;
  }
  static KvScales scales(bool by_head) {
    if (!by_head) return {{.k = 0.0185546875F, .v = 0.0078125F}, {.k = 1, .v = 0.01171875F}};
    return KvScales({{.k = 0.0185546875F, .v = 0.0078125F},
                     {.k = 0.03125F, .v = 0.0078125F},
                     {.k = 0.0625F, .v = 0.0078125F},
                     {.k = 0.009765625F, .v = 0.0078125F},
                     {.k = 1, .v = 0.01171875F},
                     {.k = 1, .v = 0.5F},
                     {.k = 1, .v = 0.0078125F},
                     {.k = 1, .v = 0.046875F}},
                    kHeads);
  }

  static Outcome run(engine::GridShape grid, bool float8, bool by_head = false) {
    Outcome outcome;
    test::RunningGroup group({.model_directory = model(by_head).path(),
                              .grid = grid,
                              .float8_kv = float8,
                              .device_pages = 64,
                              .host_pages = 448});
    group.link().set_on_send([&](const Envelope& sent) {
      if (sent.has_cached_prefixes() && sent.cached_prefixes().origins_size() > 0) {
        outcome.origin = sent.cached_prefixes().origins(0).origin();
      }
    });
    group.start();
    outcome.first = prefill(group, "a");
    outcome.first_cache = pull(group, outcome.first.manifest());
    outcome.again = prefill(group, "b");
    outcome.again_cache = pull(group, outcome.again.manifest());
    outcome.max_prompt_tokens = group.description().max_prompt_tokens();
    return outcome;
  }

  static kvclient::Manifest manifest_of(const protocol::PrefillDone& done) {
    return kvclient::from_protocol(done.manifest());
  }
  // What a float32 cache becomes under the scales of the checkpoint.
  static Cache quantised(const Cache& wide, bool by_head) {
    const KvScales all = scales(by_head);
    Cache codes(wide.size() / 4);
    const int64_t half = 64 * 16;
    for (int64_t at = 0; at < std::ssize(codes); at += half) {
      const auto row = static_cast<int32_t>(at / (std::ssize(codes) / (kLayers * kHeads)));
      const auto& scale = all.of(row / kHeads, row % kHeads);
      kernels::ref::float8_encode({.x = wide.data() + 4 * at,
                                   .dtype = DType::kFloat32,
                                   .codes = reinterpret_cast<Float8*>(codes.data() + at),
                                   .count = half,
                                   .scale = at / half % 2 == 0 ? scale.k : scale.v});
    }
    return codes;
  }
  static double number(std::byte code) { return to_float(Float8{static_cast<uint8_t>(code)}); }
  // The number of elements that differ; all, if one differs by more than the next code.
  static int64_t num_moved(const Cache& a, const Cache& b) {
    int64_t moved = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const int distance = std::abs(static_cast<int>(a[i] & std::byte{0x7f}) -
                                    static_cast<int>(b[i] & std::byte{0x7f}));
      if (distance > 1) return std::ssize(a);
      moved += distance;
    }
    return moved;
  }

 private:
  static protocol::PrefillDone prefill(test::RunningGroup& group, const std::string& id) {
    auto envelope = prefill_request(id, kTokens, "dense");
    auto& options = *envelope.mutable_prefill_request()->mutable_options();
    options.set_cache(protocol::CACHE_BOTH);
    options.set_min_recall(0);
    group.link().push(envelope);
    const auto done = group.link().wait_for(Envelope::kPrefillDone);
    MR_CHECK(done.has_value(), "no prefill_done");
    return done->prefill_done();
  }
  static Cache pull(test::RunningGroup& group, const protocol::Manifest& manifest) {
    kvclient::KvClient client(group.transport(), kvclient::from_protocol(manifest), {});
    Cache all;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t head = 0; head < kHeads; ++head) {
        Cache pages(static_cast<size_t>(kPages * client.page_bytes()));
        const auto pulled =
            client.pull(layer, head, 0, kPages, pages, Deadline::after(std::chrono::seconds(60)));
        MR_CHECK(pulled.ok(), "{}", pulled.error().to_string());
        all.insert(all.end(), pages.begin(), pages.end());
      }
    }
    return all;
  }
};

class GroupFloat8OnGridsTest
    : public GroupFloat8Test,
      public ::testing::WithParamInterface<std::tuple<engine::GridShape, bool>> {};

TEST_P(GroupFloat8OnGridsTest, PagesAreTheOtherCachesQuantisedAndServeAsAPrefix) {
  const auto [grid, by_head] = GetParam();
  const auto wide = run(grid, false), narrow = run(grid, true, by_head);
  const auto manifest = manifest_of(narrow.first);
  const auto checked = kvclient::check_manifest(manifest);
  ASSERT_TRUE(checked.ok()) << checked.error().to_string();
  EXPECT_EQ(manifest.version, by_head ? 4 : 3);
  EXPECT_EQ(manifest.layout.dtype, "float8_e4m3");
  EXPECT_EQ(manifest.layout.scales, scales(by_head));

  // The model computes in float32, so it takes a quarter of the bytes.
  EXPECT_EQ(4 * narrow.first_cache.size(), wide.first_cache.size());
  EXPECT_TRUE(narrow.first_cache == quantised(wide.first_cache, by_head));
  int64_t bytes = 0, wide_bytes = 0;
  for (const auto& tier : manifest.tiers) bytes += tier.bytes;
  for (const auto& tier : manifest_of(wide.first).tiers) wide_bytes += tier.bytes;
  EXPECT_EQ(4 * bytes, wide_bytes);
  EXPECT_EQ(bytes, std::ssize(narrow.first_cache));
  EXPECT_EQ(4 * narrow.first.stored().bytes(), wide.first.stored().bytes());
  const uint64_t room = 3 * wide.max_prompt_tokens;  // records of pages do not shrink
  EXPECT_GE(narrow.max_prompt_tokens, std::min<uint64_t>(room, kMaxPositions));

  // Behind its own pages the same prompt attends to what they stand for.
  EXPECT_EQ(narrow.again.cached_tokens(), 576u);
  EXPECT_EQ(manifest_of(narrow.again).layout.scales, scales(by_head));
  constexpr int64_t kPageBytes = 2 * 64 * 16;
  double distance = 0, size = 0;
  for (int64_t row = 0; row < kLayers * kHeads; ++row) {
    for (int64_t page = 0; page < kPages; ++page) {
      const auto part = [&](const Cache& cache) {
        const auto begin = cache.begin() + (row * kPages + page) * kPageBytes;
        return Cache(begin, begin + kPageBytes);
      };
      const auto first = part(narrow.first_cache), again = part(narrow.again_cache);
      // K and V of layer 0 follow from the tokens alone.
      if (page < 9 || row < kHeads) {
        EXPECT_TRUE(first == again) << row << " " << page;
        continue;
      }
      for (size_t i = 0; i < first.size(); ++i) {
        const double a = number(first[i]), b = number(again[i]);
        distance += (a - b) * (a - b);
        size += a * a;
      }
    }
  }
  // No more than what one rounding to a code, of 3 bits, leaves.
  EXPECT_GT(distance, 0);
  EXPECT_LT(std::sqrt(distance / size), 1.0 / 16);
  for (int i = 0; i < narrow.first.manifest().top_logprobs_size(); ++i) {
    EXPECT_NEAR(narrow.again.manifest().top_logprobs(i).logit(),
                narrow.first.manifest().top_logprobs(i).logit(), 0.05);
  }
  // No page of one cache is taken for one of the other, because their keys differ.
  EXPECT_NE(narrow.origin, 0u);
  EXPECT_NE(narrow.origin, wide.origin);
}

INSTANTIATE_TEST_SUITE_P(
    Grids, GroupFloat8OnGridsTest,
    ::testing::Combine(::testing::Values(engine::GridShape{1, 1}, engine::GridShape{2, 1},
                                         engine::GridShape{1, 2}, engine::GridShape{2, 2}),
                       ::testing::Bool()),
    [](const auto& instance) {
      const auto grid = std::get<engine::GridShape>(instance.param);
      return fmt::format("Tp{}Cp{}{}", grid.tp, grid.cp,
                         std::get<bool>(instance.param) ? "ByHead" : "");
    });

// Sums in different orders round differently in float32, so some elements lie on the other side of
// a tie.
TEST_F(GroupFloat8Test, GridsHaveTheSamePagesButForRoundingAtTies) {
  const auto alone = run({1, 1}, true);
  for (const engine::GridShape grid :
       {engine::GridShape{2, 1}, engine::GridShape{1, 2}, engine::GridShape{2, 2}}) {
    const auto other = run(grid, true);
    EXPECT_LT(num_moved(alone.first_cache, other.first_cache), std::ssize(alone.first_cache) / 1000)
        << grid.tp << " " << grid.cp;
  }
}

}  // namespace
}  // namespace millrace::worker
