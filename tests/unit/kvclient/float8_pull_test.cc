// SPDX-License-Identifier: Apache-2.0
// Pulls of caches in 8-bit floats: their codes, what the codes stand for, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "comm/local/fault_transport.h"
#include "comm/local/local_transport.h"
#include "kvclient/device/device_copier.h"
#include "kvclient/pull_client.h"
#include "tests/unit/kvclient/fake_copier.h"
#include "tests/unit/kvclient/paged_cache.h"
#include "tests/unit/kvclient/stored_ranks.h"

namespace millrace::kvclient {
namespace {

using test::FakeRanks;
using test::PagedCache;
using test::StoredRanks;
using ::testing::HasSubstr;

constexpr int32_t kHeadDim = 32;
constexpr int64_t kPageTokens = 64;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

// By the format's table: sign, 4 bits of exponent with bias 7, 3 of mantissa.
double e4m3(std::byte code) {
  const int bits = static_cast<int>(code), exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

float element(const std::vector<std::byte>& from, DType dtype, size_t i) {
  const auto read = [&]<typename Element>(Element x) {
    std::memcpy(&x, from.data() + i * sizeof x, sizeof x);
    return to_float(x);
  };
  if (dtype == DType::kFloat32) return read(float{});
  return dtype == DType::kBFloat16 ? read(BFloat16{}) : read(Float16{});
}

// The whole cache in blocks of one layer's K and V, side by side by kv head.
struct DecodedCache {
  DecodedCache(const Manifest& of, DType dtype_in) : manifest(of), dtype(dtype_in) {
    const auto& layout = of.layout;
    const int64_t blocks = of.num_pages();
    const int64_t row = kHeadDim * dtype_bytes(dtype);
    layers.assign(static_cast<size_t>(2 * layout.num_layers),
                  std::vector<std::byte>(
                      static_cast<size_t>(layout.num_kv_heads * blocks * kPageTokens * row)));
    request.num_kv_heads = layout.num_kv_heads;
    request.dtype = dtype;
    request.head_dim = kHeadDim;
    request.num_tokens = of.num_tokens;
    for (int32_t i = 0; i < blocks; ++i) request.block_ids.push_back(i);
    for (size_t i = 0; i < layers.size(); i += 2) {
      request.layers.push_back({.k = layers[i].data(),
                                .v = layers[i + 1].data(),
                                .block_stride = kPageTokens * row,
                                .head_stride = blocks * kPageTokens * row,
                                .token_stride = row});
    }
    request.float8 = Float8Cache::kDecoded;
  }

  // The first place where it is not what the ranks' codes stand for.
  std::string difference(const FakeRanks& ranks) const {
    for (int32_t layer = 0; layer < manifest.layout.num_layers; ++layer) {
      for (int32_t head = 0; head < manifest.layout.num_kv_heads; ++head) {
        for (int64_t page = 0; page < manifest.num_pages(); ++page) {
          const auto codes = ranks.page(layer, head, page);
          const int64_t half = kPageTokens * kHeadDim;
          const int64_t tokens = std::min(kPageTokens, manifest.num_tokens - page * kPageTokens);
          for (int64_t i = 0; i < 2 * half; ++i) {
            if (i % half >= tokens * kHeadDim) continue;
            const auto& scale = manifest.layout.scales.of(layer, head);
            const double number =
                e4m3(codes[static_cast<size_t>(i)]) * double{i < half ? scale.k : scale.v};
            const float expected = rounded_to(dtype, static_cast<float>(number));
            const auto at =
                static_cast<size_t>((head * manifest.num_pages() + page) * half + i % half);
            const float found =
                element(layers[static_cast<size_t>(2 * layer + (i < half ? 0 : 1))], dtype, at);
            if (found == expected || (std::isnan(found) && std::isnan(expected))) continue;
            return fmt::format("layer {} head {} page {} element {}: {}, not {}", layer, head, page,
                               i, found, expected);
          }
        }
      }
    }
    return "";
  }

  const Manifest& manifest;
  const DType dtype;
  std::vector<std::vector<std::byte>> layers;  // K, V of each
  PullRequest request;
};

class Float8PullTest : public testing::Test {
 protected:
  // The bytes of ranks that hold 16 bits, taken as twice as many codes.
  static Manifest as_float8(Manifest manifest) {
    manifest.version = 3;
    manifest.layout.dtype = kFloat8KvName;
    manifest.layout.head_dim = kHeadDim;
    manifest.layout.scales = {{.k = 0.037F, .v = 1}, {.k = 0.5F, .v = 0.0123F}};
    return manifest;
  }
  // Every kv head has its own scales.
  static Manifest by_head(Manifest manifest) {
    manifest.version = 4;
    std::vector<KvScale> scales;
    for (int32_t i = 0; i < manifest.layout.num_layers * manifest.layout.num_kv_heads; ++i) {
      scales.push_back(
          {.k = 0.037F * static_cast<float>(i + 1), .v = 1 / static_cast<float>(i + 3)});
    }
    manifest.layout.scales = KvScales(std::move(scales), manifest.layout.num_kv_heads);
    return manifest;
  }
  static Error refusal(PullClient& client, const Manifest& manifest, const PullRequest& request) {
    const auto pull = client.start(manifest, request);
    MR_CHECK(!pull.ok(), "the pull was accepted");
    return pull.error();
  }
  static void pull(PullClient& client, const Manifest& manifest, const PullRequest& request,
                   int64_t fetches = 0) {
    const auto pull = client.start(manifest, request);
    ASSERT_TRUE(pull.ok()) << pull.error().to_string();
    const auto end = (*pull)->wait(ample());
    ASSERT_TRUE(end && end->ok()) << (end ? end->error().to_string() : "late");
    EXPECT_EQ((*pull)->stats().bytes, ((*pull)->num_pages() + fetches) * manifest.page_bytes());
  }

  comm::LocalTransport transport_;
  const FakeRanks ranks_{transport_, {.head_dim = kHeadDim / 2, .dtype = DType::kBFloat16}};
  const Manifest manifest_ = as_float8(ranks_.manifest());
};

TEST_F(Float8PullTest, APageHasHalfTheBytesOfSixteenBits) {
  ASSERT_TRUE(check_manifest(manifest_).ok());
  Manifest wide = manifest_;
  wide.layout.dtype = "bfloat16";
  EXPECT_EQ(2 * manifest_.page_bytes(), wide.page_bytes());
}

TEST_F(Float8PullTest, CodesComeAsTheyAre) {
  PullClient client(transport_, {.num_threads = 2});
  for (const auto layout : {test::Layout::kHndTwoTensors, test::Layout::kNhdOneTensor}) {
    PagedCache cache(ranks_, test::whole(ranks_, layout, 16));
    auto request = cache.request();
    request.head_dim = kHeadDim;
    request.float8 = Float8Cache::kCodes;
    pull(client, manifest_, request);
    EXPECT_EQ(cache.difference(), "");
  }
}

TEST_F(Float8PullTest, DecodedTheyAreTheNumbersTheyStandForInEveryDtype) {
  PullClient client(transport_, {.num_threads = 2, .pages_per_request = 3});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    DecodedCache cache(manifest_, dtype);
    pull(client, manifest_, cache.request);
    EXPECT_EQ(cache.difference(ranks_), "") << dtype_name(dtype);
  }
}

TEST_F(Float8PullTest, DecodesOfTheSamePagesInTheMemoryOfADeviceAndOfRanksOnThisHost) {
  StoredRanks stored(transport_, ranks_, {});
  const Manifest manifest = as_float8(stored.manifest());
  PullClient client(transport_, {.num_threads = 1,
                                 .pages_per_request = 2,
                                 .device_copier = std::make_shared<test::FakeCopier>()});
  // The first pull brings the sockets; the others copy from the ranks' memory.
  for (const int32_t device : {kHostMemory, kHostMemory, 3}) {
    DecodedCache cache(manifest, DType::kBFloat16);
    cache.request.device = device;
    pull(client, manifest, cache.request);
    EXPECT_EQ(cache.difference(ranks_), "") << device;
  }
  EXPECT_GT(stored.bytes_sent_over(comm::Carrier::kSameHost), 0);
}

TEST_F(Float8PullTest, ByNameAPageIsDecodedWhereTheRequestSaysSo) {
  PullClient client(transport_, {.num_threads = 1});
  std::vector<std::byte> memory(static_cast<size_t>(2 * kPageTokens * kHeadDim * 4));
  PullRequest request{
      .pages = {{.name = {.layer = 1, .kv_head = 2, .page = 3}, .to = memory.data()}},
      .block_ids = {},
      .layers = {}};
  EXPECT_EQ(refusal(client, manifest_, request).code, Errc::kUnsupported);
  request.float8 = Float8Cache::kDecoded;
  pull(client, manifest_, request);
  const auto codes = ranks_.page(1, 2, 3);
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto expected =
        static_cast<float>(e4m3(codes[i]) * (i < codes.size() / 2 ? 0.5F : 0.0123F));
    const float found = element(memory, DType::kFloat32, i);
    ASSERT_TRUE(found == expected || std::isnan(expected)) << i << ": " << found;
  }
}

TEST_F(Float8PullTest, APageThatArrivesWrongIsNotDecodedButFetchedAgain) {
  comm::FaultTransport faulty(
      transport_, {{{.kind = comm::FaultKind::kFlipByte, .first_call = 3, .byte = 1000}}});
  PullClient client(faulty, {.num_threads = 1});
  DecodedCache cache(manifest_, DType::kFloat32);
  pull(client, manifest_, cache.request, /*fetches=*/1);
  EXPECT_EQ(cache.difference(ranks_), "");
}

TEST_F(Float8PullTest, WhoDoesNotNameWhatBecomesOfItIsRefusedWithBothDtypes) {
  PullClient client(transport_, {.num_threads = 1});
  DecodedCache cache(manifest_, DType::kBFloat16);
  auto request = cache.request;
  request.float8 = Float8Cache::kRefused;
  const auto no_word = refusal(client, manifest_, request);
  EXPECT_EQ(no_word.code, Errc::kUnsupported);
  EXPECT_THAT(no_word.message, HasSubstr("the cache is float8_e4m3, its destination bfloat16"));

  // Codes cannot be pulled from a cache of 16 bits.
  Manifest wide = ranks_.manifest();
  PagedCache paged(ranks_, test::whole(ranks_));
  auto codes = paged.request();
  codes.float8 = Float8Cache::kCodes;
  const auto mixed = refusal(client, wide, codes);
  EXPECT_EQ(mixed.code, Errc::kUnsupported);
  EXPECT_THAT(mixed.message, HasSubstr("the cache is bfloat16, its destination float8_e4m3"));
  EXPECT_TRUE(paged.untouched());
}

TEST_F(Float8PullTest, EachHeadIsDecodedUnderItsScales) {
  PullClient client(transport_, {.num_threads = 2, .pages_per_request = 3});
  const Manifest manifest = by_head(manifest_);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    DecodedCache cache(manifest, dtype);
    pull(client, manifest, cache.request);
    EXPECT_EQ(cache.difference(ranks_), "") << dtype_name(dtype);
  }
}

TEST_F(Float8PullTest, AManifestKeepsItsScalesOnTheWayThroughJson) {
  for (const Manifest& manifest : {manifest_, by_head(manifest_)}) {
    const auto parsed = parse_manifest(to_json(manifest), "test");
    ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
    EXPECT_EQ(parsed->layout.scales, manifest.layout.scales);
    const auto checked = check_manifest(*parsed);
    EXPECT_TRUE(checked.ok()) << checked.error().to_string();
  }
}

TEST_F(Float8PullTest, AManifestWhoseScalesAreNoneIsRefused) {
  const auto refused = [&](const std::function<void(Manifest&)>& spoil) {
    Manifest manifest = manifest_;
    spoil(manifest);
    const auto checked = check_manifest(manifest);
    return checked.ok() ? Errc::kInternal : checked.error().code;
  };
  for (const float scale : {0.0F, -1.0F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e30F, 1e-30F}) {
    EXPECT_EQ(refused([&](Manifest& m) { m.layout.scales.of(1, 0).k = scale; }),
              Errc::kInvalidArgument)
        << scale;
    EXPECT_EQ(refused([&](Manifest& m) { m.layout.scales.of(0, 0).v = scale; }),
              Errc::kInvalidArgument)
        << scale;
  }
  EXPECT_EQ(refused([](Manifest& m) { m.layout.scales = KvScales(1); }), Errc::kInvalidArgument);
  // A reader of version 1 or 2 would take codes for something else.
  EXPECT_EQ(refused([](Manifest& m) { m.version = 1; }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Manifest& m) { m.layout.dtype = "bfloat16"; }), Errc::kInvalidArgument);
  // A reader of version 3 would take the heads' scales for the layers'.
  EXPECT_EQ(refused([](Manifest& m) { m.version = 4; }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Manifest& m) { m = by_head(m), m.version = 3; }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Manifest& m) { m = by_head(m), m.layout.num_layers = 1; }),
            Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Manifest& m) { m.version = 5; }), Errc::kUnsupported);
}

}  // namespace
}  // namespace millrace::kvclient
