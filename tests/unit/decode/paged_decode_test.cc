// SPDX-License-Identifier: Apache-2.0
// Decoding over a cache of which a node has only some pages gives the tokens of dense attention,
// whatever fits and whenever it comes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "comm/local/fault_transport.h"
#include "comm/local/local_transport.h"
#include "decode/decode_node.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/fake_clock.h"
#include "tests/support/needle_prompt.h"
#include "tests/unit/decode/golden_prompt.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace::decode {
namespace {

using test::ServedPrompt;
using ::testing::HasSubstr;

constexpr int64_t kPages = 32;
constexpr int32_t kTokens = 12;

// The trained fixture, after a prompt that asks for one of its records. All tests share one
// service.
class PagedDecodeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    transport_ = new comm::LocalTransport();
    clock_ = new testing::FakeClock();  // the lease does not end
    prompt_ =
        new testing::NeedlePrompt(testing::make_needle_prompt({.tokens = kPages * 64, .seed = 3}));
    served_ = new ServedPrompt(*transport_, *clock_,
                               ServedPrompt::Options{.model_directory = model(),
                                                     .grid = {1, 2},
                                                     .tokens = prompt_->token_ids,
                                                     .device_pages = 0,
                                                     .host_pages = 120});
    auto dense = decode(*transport_, manifest(), options());
    MR_CHECK(dense.ok(), "{}", dense.error().to_string());
    dense_ = new std::vector<int32_t>(dense->token_ids);
  }
  static void TearDownTestSuite() {
    delete dense_;
    delete served_;
    delete prompt_;
    delete clock_;
    delete transport_;
  }

  static std::string model() { return MILLRACE_SOURCE_DIR "/tests/models/fixture"; }
  static kvclient::Manifest manifest() { return kvclient::from_protocol(served_->manifest()); }
  static DecodeOptions options() {
    return {.model_directory = model(),
            .max_tokens = kTokens,
            .ignore_eos = true,
            .timeout = std::chrono::minutes(10)};
  }
  static DecodeOptions progressive() {
    auto wanted = options();
    wanted.attention = AttentionMode::kProgressive;
    return wanted;
  }
  static DecodeReport must_decode(const DecodeOptions& wanted,
                                  comm::Transport& transport = *transport_) {
    auto report = decode(transport, manifest(), wanted);
    MR_CHECK(report.ok(), "{}", report.error().to_string());
    return std::move(*report);
  }
  static int64_t touched(const DecodeReport& report) {
    int64_t sum = 0;
    for (const int64_t pages : report.progressive.attention.pages_touched) sum += pages;
    return sum;
  }

  static inline comm::LocalTransport* transport_ = nullptr;
  static inline testing::FakeClock* clock_ = nullptr;
  static inline testing::NeedlePrompt* prompt_ = nullptr;
  static inline ServedPrompt* served_ = nullptr;
  static inline std::vector<int32_t>* dense_ = nullptr;
};

TEST_F(PagedDecodeTest, TheWholeMassGivesTheTokensOfDenseAttention) {
  auto wanted = progressive();
  wanted.progressive.mass = 1;
  const auto report = must_decode(wanted);
  EXPECT_EQ(report.token_ids, *dense_);
  EXPECT_EQ(touched(report), (kTokens - 1) * 5 * 2 * kPages);
  EXPECT_EQ(report.pulled.pages, 5 * 2 * kPages);
  EXPECT_GT(report.first_token_s, 0);
}

TEST_F(PagedDecodeTest, MostOfTheMassGivesThemTooOnFewerPages) {
  for (const int tp : {1, 2}) {
    auto wanted = progressive();
    wanted.tp = tp;
    const auto report = must_decode(wanted);
    EXPECT_EQ(report.token_ids, *dense_);
    EXPECT_LT(touched(report), (kTokens - 1) * 5 * 2 * kPages * 9 / 10);
    EXPECT_EQ(report.progressive.attention.steps, kTokens - 1);
  }
}

// Each step chooses after the tokens of dense attention. The choices must be the same, and the
// pages of each step are checked.
TEST_F(PagedDecodeTest, NeitherMemoryNorPredictionNorWhenItStartsChangesWhatIsRead) {
  auto wanted = progressive();
  const auto expected = must_decode(wanted);
  const int64_t page_bytes = manifest().page_bytes();
  for (const int64_t pages : {16, 130}) {
    for (const bool predict : {false, true}) {
      for (const auto start : {DecodeStart::kNeed, DecodeStart::kWhole}) {
        wanted.progressive.pages_memory_bytes = pages * page_bytes;
        wanted.progressive.predict = predict;
        wanted.progressive.start = start;
        const auto report = must_decode(wanted);
        EXPECT_EQ(report.token_ids, expected.token_ids) << pages << " pages";
        EXPECT_EQ(report.progressive.attention.pages_touched,
                  expected.progressive.attention.pages_touched)
            << pages << " pages";
        EXPECT_EQ(report.progressive.num_slots, pages);
        EXPECT_EQ(report.progressive.lookahead.made > 0, predict);
      }
    }
  }
}

TEST_F(PagedDecodeTest, CountsEachPageItReadsOnce) {
  auto wanted = progressive();
  wanted.progressive.pages_memory_bytes = 50 * manifest().page_bytes();
  const auto report = must_decode(wanted);
  for (size_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(report.progressive.pool.layers[layer].asked(),
              report.progressive.attention.pages_touched[layer]);
  }
  const auto& pool = report.progressive.pool;
  EXPECT_EQ(report.pulled.pages, pool.filled_pages + pool.predicted_pages + pool.needed_pages);
}

TEST_F(PagedDecodeTest, FollowingGivesTheChoicesAfterOthersTokens) {
  auto wanted = options();
  wanted.follow = *dense_;
  EXPECT_EQ(must_decode(wanted).token_ids, *dense_);
  std::vector<int32_t> others(dense_->size(), 100);
  others.front() = dense_->front();
  wanted.follow = others;
  const auto choices = must_decode(wanted).token_ids;
  EXPECT_EQ(choices[1], (*dense_)[1]);
  EXPECT_NE(choices, *dense_);
  EXPECT_NE(choices, others);
}

TEST_F(PagedDecodeTest, ARankThatIsLostIsAnError) {
  comm::FaultTransport faulty(
      *transport_,
      {.faults = {{.kind = comm::FaultKind::kLosePeer, .first_call = 40, .num_calls = 100000}}});
  auto wanted = progressive();
  wanted.client.same_host = false;
  wanted.progressive.pages_memory_bytes = 20 * manifest().page_bytes();
  const auto failed = decode(faulty, manifest(), wanted);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Errc::kPeerLost);
  EXPECT_THAT(failed.error().message, HasSubstr("prompt-1"));
}

TEST_F(PagedDecodeTest, APageThatStaysWrongIsAnErrorNotAToken) {
  // Digests and scores of the layers take 5 * (2 * 2 + 2) calls, by layer, kv head and rank; pages
  // come after them.
  comm::FaultTransport faulty(
      *transport_,
      {.faults = {{.kind = comm::FaultKind::kFlipByte, .first_call = 30, .num_calls = 1 << 20}}});
  auto wanted = progressive();
  wanted.client.same_host = false;
  const auto failed = decode(faulty, manifest(), wanted);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Errc::kCorrupt);
}

TEST_F(PagedDecodeTest, APageThatArrivesWrongOnceIsFetchedAgain) {
  comm::FaultTransport faulty(
      *transport_,
      {.faults = {{.kind = comm::FaultKind::kFlipByte, .first_call = 31, .num_calls = 2}}});
  auto wanted = progressive();
  wanted.client.same_host = false;
  const auto report = must_decode(wanted, faulty);
  EXPECT_EQ(report.token_ids, *dense_);
  EXPECT_GT(report.pulled.corrupt_pages, 0);
}

TEST_F(PagedDecodeTest, TooLittleMemoryIsRefused) {
  auto wanted = progressive();
  wanted.progressive.pages_memory_bytes = 15 * manifest().page_bytes();
  const auto refused = decode(*transport_, manifest(), wanted);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("16 pages"));
}

// Both kinds of attention and two degrees of parallelism, against Transformers' tokens
// (architectures/make_models.py). `also`: checks each report, after a prompt of `num_tokens`.
using AlsoCheck = std::function<void(const DecodeReport&, AttentionMode, size_t num_tokens)>;

void expect_golden_tokens(const std::string& name, const AlsoCheck& also) {
  const std::string model = test::architecture(name);
  const auto golden = test::golden_prompts(model);
  ASSERT_EQ(golden.size(), 2u);
  for (const auto& [prompt, expected] : golden) {
    comm::LocalTransport transport;
    const testing::FakeClock clock;
    const ServedPrompt served(transport, clock,
                              {.model_directory = model, .grid = {1, 2}, .tokens = prompt});
    const auto manifest = kvclient::from_protocol(served.manifest());
    for (const auto attention : {AttentionMode::kDense, AttentionMode::kProgressive}) {
      for (const int tp : {1, 2}) {
        SCOPED_TRACE(fmt::format("{}, {} tokens, tp {}", name, prompt.size(), tp));
        DecodeOptions options{.model_directory = model,
                              .tp = tp,
                              .max_tokens = static_cast<int32_t>(expected.size()),
                              .timeout = std::chrono::minutes(1),
                              .attention = attention};
        options.progressive.mass = 1;  // of layers that have no window
        const auto report = decode(transport, manifest, options);
        ASSERT_TRUE(report.ok()) << report.error().to_string();
        EXPECT_EQ(report->token_ids, expected);
        also(*report, attention, prompt.size());
      }
    }
  }
}

// Windows of 37 tokens in layers 0 and 2. They begin within the last page but one, and after a
// while among new tokens.
TEST(WindowedDecode, GivesTransformersTokens) {
  expect_golden_tokens("window_ministral",
                       [](const DecodeReport& report, AttentionMode attention, size_t num_tokens) {
                         if (attention == AttentionMode::kDense || num_tokens < 100) return;
                         // Only a window's pages: one or two for each kv head and token.
                         const auto& touched = report.progressive.attention.pages_touched;
                         const int64_t steps = std::ssize(report.token_ids) - 1;
                         EXPECT_LE(touched[0], 2 * 2 * steps);
                         EXPECT_EQ(touched[1], 2 * 11 * steps);
                       });
}

// Scaled embeddings, norms after each half of a layer, and sinks, on the decode node's side.
TEST(ArchitectureDecode, GivesTransformersTokens) {
  for (const char* name : {"gemma3", "glm4", "gpt-oss", "gpt-oss-mxfp4", "smollm3"}) {
    expect_golden_tokens(name, [](const DecodeReport&, AttentionMode, size_t) {});
  }
}

}  // namespace
}  // namespace millrace::decode
