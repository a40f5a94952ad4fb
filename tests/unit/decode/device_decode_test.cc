// SPDX-License-Identifier: Apache-2.0
// Decoding on a GPU over a cache that ranks hand over gives the tokens of dense attention,
// whichever pages have slots and whenever they come.

#include <gtest/gtest.h>

#include <thread>

#include "comm/local/local_transport.h"
#include "decode/decode_node.h"
#include "kernels/cuda/cuda_device.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/fake_clock.h"
#include "tests/support/needle_prompt.h"
#include "tests/unit/decode/golden_prompt.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace::decode {
namespace {

constexpr int32_t kLayers = 5;
constexpr int32_t kHeads = 2;
constexpr int64_t kPages = 32;
// The four digits that the prompt asks for, and how the fixture continues.
constexpr int32_t kTokens = 8;

class DeviceDecodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::num_cuda_devices() == 0) GTEST_SKIP() << "no GPU that the kernels run on";
  }
  static std::string model() { return MILLRACE_SOURCE_DIR "/tests/models/fixture"; }
  // `options`: how the cache differs from that of a rank that computes in bfloat16.
  kvclient::Manifest serve(test::ServedPrompt::Options options = {}) {
    options.model_directory = model();
    options.grid = {1, 2};
    options.tokens = prompt_.token_ids;
    options.compute_dtype = DType::kBFloat16;
    options.device_pages = 0;
    options.host_pages = 120;
    served_ = std::make_unique<test::ServedPrompt>(transport_, clock_, options);
    return kvclient::from_protocol(served_->manifest());
  }
  DecodeReport must_decode(const kvclient::Manifest& manifest, const DecodeOptions& wanted) {
    auto report = decode(transport_, manifest, wanted);
    MR_CHECK(report.ok(), "{}", report.error().to_string());
    return std::move(*report);
  }
  // Whichever pages have slots and whenever they come.
  void expect_tokens_of_dense_attention(const kvclient::Manifest& manifest, int64_t num_pages) {
    DecodeOptions wanted{.model_directory = model(), .max_tokens = kTokens, .ignore_eos = true};
    const auto dense = must_decode(manifest, wanted).token_ids;
    ASSERT_EQ(std::vector(dense.begin(), dense.begin() + 4), prompt_.answer_tokens);
    wanted.attention = AttentionMode::kProgressive;
    wanted.gpu = 0;
    for (const int64_t pages : {0, 40, 150}) {
      for (const bool predict : {false, true}) {
        for (const auto start : {DecodeStart::kNeed, DecodeStart::kHot, DecodeStart::kWhole}) {
          wanted.progressive.pages_memory_bytes = pages * manifest.page_bytes();
          wanted.progressive.predict = predict;
          wanted.progressive.start = start;
          const auto report = must_decode(manifest, wanted);
          EXPECT_EQ(report.token_ids, dense)
              << pages << " pages, start " << static_cast<int>(start);
          ASSERT_TRUE(report.device_pages);
          EXPECT_EQ(report.device_pages->tokens, kTokens - 1);
          EXPECT_LE(report.pulled.pages, num_pages);
          EXPECT_EQ(report.pulled.bytes, report.pulled.pages * manifest.page_bytes());
        }
      }
    }
  }

  comm::LocalTransport transport_;
  testing::FakeClock clock_;  // the lease does not end
  const testing::NeedlePrompt prompt_ =
      testing::make_needle_prompt({.tokens = kPages * 64 - 7, .seed = 3});
  std::unique_ptr<test::ServedPrompt> served_;
};

TEST_F(DeviceDecodeTest, GivesTheTokensOfDenseAttention) {
  expect_tokens_of_dense_attention(serve(), kLayers * kHeads * kPages);
}

// Layers come one by one, once the model is loaded. The host memory allocated in advance is enough,
// too little, or none.
TEST_F(DeviceDecodeTest, BesideThePrefill) {
  const auto manifest = serve();
  DecodeOptions wanted{.model_directory = model(), .max_tokens = kTokens, .ignore_eos = true};
  const auto dense = must_decode(manifest, wanted).token_ids;
  wanted.attention = AttentionMode::kProgressive;
  wanted.gpu = 0;
  for (const auto start : {DecodeStart::kNeed, DecodeStart::kHot, DecodeStart::kWhole}) {
    for (const int64_t memory : {int64_t{0}, int64_t{1}, kLayers * kHeads * kPages}) {
      const auto feed = std::make_shared<kvclient::HandoverFeed>();
      std::jthread prefill;
      wanted.progressive.start = start;
      wanted.progressive.host_memory_bytes = memory * manifest.page_bytes();
      wanted.on_loaded = [&] {
        prefill = std::jthread([&] {
          feed->take("manifest", test::event_of(manifest));
          for (int32_t layer = 0; layer < kLayers; ++layer) {
            feed->take("layer", fmt::format(R"({{"layer":{}}})", layer));
          }
          feed->take("done", test::event_of(manifest));
        });
      };
      const auto report = decode(transport_, feed, wanted);
      ASSERT_TRUE(report.ok()) << report.error().to_string();
      EXPECT_EQ(report->token_ids, dense) << memory << " pages of memory";
    }
  }
}

// Three of four pages are kept, different ones for each head.
TEST_F(DeviceDecodeTest, OverACacheThatIsKeptInPart) {
  const auto kept = std::make_shared<KeptPages>(kLayers, kHeads, kPages);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int64_t page = 0; page < kPages; ++page) {
        if ((page + 2 * head) % 4 != layer % 4 || page == 0 || page + 2 >= kPages)
          kept->keep(layer, head, page);
      }
    }
  }
  expect_tokens_of_dense_attention(serve({.kept = kept}), kept->count());
}

// As codes: half the bytes of 16 bits.
TEST_F(DeviceDecodeTest, OverACacheInEightBits) {
  const auto scales =
      std::make_shared<const KvScales>(kLayers, KvScale{.k = 0.0371F, .v = 0.0123F});
  const auto manifest = serve({.float8 = scales});
  EXPECT_EQ(manifest.page_bytes(), 2 * 64 * manifest.layout.head_dim);
  expect_tokens_of_dense_attention(manifest, kLayers * kHeads * kPages);
}

// Windows of 37 tokens in layers 0 and 2, which after a while begin among new tokens; of 91 in all
// layers; of 150 in layers 1 and 2; and gpt-oss's, together with its sinks and experts. In float16,
// which is near enough to float32 to give Transformers' tokens.
TEST_F(DeviceDecodeTest, BehindWindowsItGivesTransformersTokens) {
  for (const char* name :
       {"window_ministral", "window_mistral", "window_qwen2", "gpt-oss", "gpt-oss-mxfp4"}) {
    const std::string model = test::architecture(name);
    for (const auto& [tokens, expected] : test::golden_prompts(model)) {
      const test::ServedPrompt served(transport_, clock_,
                                      {.model_directory = model,
                                       .grid = {1, 2},
                                       .tokens = tokens,
                                       .cache_dtype = DType::kFloat16});
      DecodeOptions wanted{.model_directory = model,
                           .gpu = 0,
                           .max_tokens = static_cast<int32_t>(expected.size()),
                           .attention = AttentionMode::kProgressive};
      wanted.progressive.mass = 1;  // of layers that have no window
      for (const int64_t pages : {0, 20}) {
        for (const auto start : {DecodeStart::kNeed, DecodeStart::kWhole}) {
          const auto manifest = kvclient::from_protocol(served.manifest());
          wanted.progressive.pages_memory_bytes = pages * manifest.page_bytes();
          wanted.progressive.start = start;
          EXPECT_EQ(must_decode(manifest, wanted).token_ids, expected)
              << name << ", " << tokens.size() << " tokens, " << pages << " pages";
        }
      }
    }
  }
}

TEST(DeviceDecode, RefusesWhatAGpuDoesNotDo) {
  comm::LocalTransport transport;
  const auto refused = [&](const DecodeOptions& wanted) {
    return decode(transport, kvclient::Manifest(), wanted).error().code;
  };
  EXPECT_EQ(refused({.gpu = 0}), Errc::kUnsupported);
  EXPECT_EQ(refused({.gpu = 0, .tp = 2, .attention = AttentionMode::kProgressive}),
            Errc::kUnsupported);
}

}  // namespace
}  // namespace millrace::decode
