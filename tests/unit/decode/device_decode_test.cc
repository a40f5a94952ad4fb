// Decoding on a GPU over a cache that ranks hand over: the tokens of dense attention, whatever has slots and
// whenever it comes.

#include <gtest/gtest.h>

#include "comm/local/local_transport.h"
#include "decode/decode_node.h"
#include "kernels/cuda/cuda_device.h"
#include "kvclient/manifest/manifest_proto.h"
#include "tests/support/fake_clock.h"
#include "tests/support/needle_prompt.h"
#include "tests/unit/decode/served_prompt.h"

namespace millrace::decode {
namespace {

constexpr int64_t kPages = 32;
// The four digits that the prompt asks for, and what the fixture goes on with.
constexpr int32_t kTokens = 8;

TEST(DeviceDecode, GivesTheTokensOfDenseAttentionWhateverHasSlotsAndWhenItComes) {
  if (kernels::num_cuda_devices() == 0) GTEST_SKIP() << "no GPU that the kernels run on";
  const std::string model = std::string(MILLRACE_SOURCE_DIR) + "/tests/models/fixture";
  comm::LocalTransport transport;
  testing::FakeClock clock;  // the lease does not end
  const auto prompt = testing::make_needle_prompt({.tokens = kPages * 64 - 7, .seed = 3});
  const test::ServedPrompt served(transport, clock,
                                  {.model_directory = model,
                                   .grid = {1, 2},
                                   .tokens = prompt.token_ids,
                                   .compute_dtype = DType::kBFloat16,
                                   .device_pages = 0,
                                   .host_pages = 120});
  const auto manifest = kvclient::from_protocol(served.manifest());
  DecodeOptions wanted{.model_directory = model, .max_tokens = kTokens, .ignore_eos = true};
  const auto dense = decode(transport, manifest, wanted);
  ASSERT_TRUE(dense.ok()) << dense.error().to_string();
  ASSERT_EQ(std::vector(dense->token_ids.begin(), dense->token_ids.begin() + 4),
            prompt.answer_tokens);

  wanted.attention = AttentionMode::kProgressive;
  wanted.gpu = 0;
  for (const int64_t pages : {0, 40, 150}) {
    for (const bool predict : {false, true}) {
      for (const auto start : {DecodeStart::kNeed, DecodeStart::kHot, DecodeStart::kWhole}) {
        wanted.progressive.pages_memory_bytes = pages * manifest.page_bytes();
        wanted.progressive.predict = predict;
        wanted.progressive.start = start;
        const auto report = decode(transport, manifest, wanted);
        ASSERT_TRUE(report.ok()) << report.error().to_string();
        EXPECT_EQ(report->token_ids, dense->token_ids)
            << pages << " pages, start " << static_cast<int>(start);
        ASSERT_TRUE(report->device_pages);
        EXPECT_EQ(report->device_pages->tokens, kTokens - 1);
        EXPECT_LE(report->pulled.pages, 5 * 2 * kPages);
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
