// SPDX-License-Identifier: Apache-2.0
// Decoding over a cache handed over in 8-bit floats gives what the trained fixture was asked for.

#include <gtest/gtest.h>

#include "comm/local/local_transport.h"
#include "common/checksum.h"
#include "common/float8_array.h"
#include "decode/decode_node.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/fake_clock.h"
#include "tests/support/needle_prompt.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace::decode {
namespace {

using test::ServedPrompt;

constexpr int32_t kLayers = 5;
constexpr int32_t kHeads = 2;
constexpr int64_t kPages = 16;
constexpr int64_t kHalf = 64 * 128;

class Float8DecodeTest : public ::testing::Test {
 protected:
  static std::string model() { return MILLRACE_SOURCE_DIR "/tests/models/fixture"; }
  DecodeReport run(AttentionMode attention) {
    DecodeOptions options{.model_directory = model(),
                          .max_tokens = 4,
                          .ignore_eos = true,
                          .timeout = std::chrono::minutes(5),
                          .attention = attention};
    options.progressive.mass = 1;
    auto report = decode(transport_, manifest_, options);
    MR_CHECK(report.ok(), "{}", report.error().to_string());
    return std::move(*report);
  }
  // K and V of a layer as float32, as a node of one rank holds them.
  std::vector<uint64_t> layer_checksums(int32_t layer) const {
    std::vector<uint64_t> sums;
    for (const bool is_k : {true, false}) {
      std::vector<float> rows(static_cast<size_t>(kHeads * kPages * kHalf));
      for (int32_t head = 0; head < kHeads; ++head) {
        for (int64_t page = 0; page < kPages; ++page) {
          const auto wide = served_.expected_page(layer, head, page);
          const auto& scale = scales_->of(layer, head);
          std::vector<Float8> codes(kHalf);
          float* to = rows.data() + (head * kPages + page) * kHalf;
          const float factor = is_k ? scale.k : scale.v;
          encode_float8(wide.data() + (is_k ? 0 : 4 * kHalf), DType::kFloat32, kHalf, factor,
                        codes.data());
          for (int64_t e = 0; e < kHalf; ++e) {
            to[e] = to_float(codes[static_cast<size_t>(e)]) * factor;
          }
        }
      }
      sums.push_back(checksum(std::as_bytes(std::span(rows))));
    }
    return sums;
  }

  comm::LocalTransport transport_;
  testing::FakeClock clock_;  // the lease does not end
  const testing::NeedlePrompt prompt_ =
      testing::make_needle_prompt({.tokens = kPages * 64, .seed = 3});
  const std::shared_ptr<const KvScales> scales_ =
      std::make_shared<const KvScales>(kLayers, KvScale{.k = 0.0371F, .v = 0.0123F});
  const ServedPrompt served_{transport_,
                             clock_,
                             {.model_directory = model(),
                              .grid = {1, 2},
                              .tokens = prompt_.token_ids,
                              .float8 = scales_,
                              .device_pages = 0,
                              .host_pages = 60}};
  const kvclient::Manifest manifest_ = kvclient::from_protocol(served_.manifest());
};

TEST_F(Float8DecodeTest, TheWholeCacheIsWhatItsCodesStandForAndHasTheAnswer) {
  const auto report = run(AttentionMode::kDense);
  EXPECT_EQ(report.token_ids, prompt_.answer_tokens);
  EXPECT_EQ(report.pulled.pages, kLayers * kHeads * kPages);
  EXPECT_EQ(report.pulled.bytes, kLayers * kHeads * kPages * 2 * kHalf);
  std::vector<uint64_t> planes;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (const uint64_t sum : layer_checksums(layer)) planes.push_back(sum);
  }
  ASSERT_EQ(report.cache_checksums.size(), 1U);
  EXPECT_EQ(report.cache_checksums.front(), checksum(std::as_bytes(std::span(planes))));
}

TEST_F(Float8DecodeTest, PageByPageItHasTheAnswerToo) {
  const auto report = run(AttentionMode::kProgressive);
  EXPECT_EQ(report.token_ids, prompt_.answer_tokens);
  EXPECT_EQ(report.pulled.bytes, kLayers * kHeads * kPages * 2 * kHalf);
}

}  // namespace
}  // namespace millrace::decode
