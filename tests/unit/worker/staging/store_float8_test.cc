// SPDX-License-Identifier: Apache-2.0
// A layer is stored as pages of 8-bit floats, and loaded as the prefix of a later prompt, on a
// device whose memory is the host's and on one with separate memory.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ref/operations.h"
#include "kvstore/kv_store.h"
#include "tests/support/far_device.h"
#include "tests/support/random_data.h"
#include "worker/staging/store_prefix.h"
#include "worker/staging/store_sink.h"

namespace millrace::worker {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kFirstHead = 4;
constexpr int32_t kLayers = 2;
constexpr int32_t kHeadDim = 16;
constexpr int64_t kPages = 4;
constexpr int64_t kRows = kPages * 64 - 53;  // the last page is partial
constexpr int64_t kHalf = 64 * kHeadDim;
constexpr auto kLease = std::chrono::hours(1);

enum class Memory { kHosts, kOwn, kOwnAndShort };

class StoreFloat8Test : public testing::TestWithParam<std::tuple<Memory, bool>> {
 protected:
  StoreFloat8Test() {
    store_ = must(kvstore::make_kv_store(
        {.host_bytes =
             4 * kPages * kLayers * kHeads * (geometry_.page_bytes() + geometry_.record_bytes()),
         .geometry = geometry_},
        Clock::steady()));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      k_.push_back(rows(2 * static_cast<uint64_t>(layer) + 1));
      v_.push_back(rows(2 * static_cast<uint64_t>(layer) + 2));
    }
  }

  template <typename T>
  static T must(Result<T> result) {
    MR_CHECK(result.ok(), "{}", result.error().to_string());
    return *std::move(result);
  }
  static void must(const Result<void>& result) {
    MR_CHECK(result.ok(), "{}", result.error().to_string());
  }
  // By layer, or by layer and kv head of the model; this rank has the last heads.
  static std::shared_ptr<const KvScales> scales(bool by_head) {
    if (!by_head) {
      return std::make_shared<const KvScales>(
          KvScales{{.k = 0.041F, .v = 1}, {.k = 0.25F, .v = 0.0117F}});
    }
    std::vector<KvScale> all;
    for (int32_t i = 0; i < kLayers * (kFirstHead + kHeads); ++i) {
      all.push_back({.k = 0.041F * static_cast<float>(i + 1), .v = 1 / static_cast<float>(i + 2)});
    }
    return std::make_shared<const KvScales>(std::move(all), kFirstHead + kHeads);
  }
  // Some values are beyond what the largest code stands for.
  static std::vector<uint16_t> rows(uint64_t seed) {
    return test::narrow_bits(test::random_normals(seed, kHeads * kRows * kHeadDim, 9),
                             DType::kBFloat16);
  }

  // Writes all layers to the store as request `id`.
  void write(const std::string& id) {
    must(store_->begin_request(id, kRows, pages_));
    const auto writer = must(PageWriter::create(*device_, *store_, geometry_, /*num_threads=*/2));
    StoreSink sink(*device_, *store_, *writer, id, pages_);
    const int64_t bytes = kHeads * kRows * kHeadDim * 2;
    const auto k = must(device_->allocate(bytes)), v = must(device_->allocate(bytes));
    const std::vector<float> scores(kHeads * kPages, 0.25F);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      device_->copy(k.data(), k_[static_cast<size_t>(layer)].data(), bytes);
      device_->copy(v.data(), v_[static_cast<size_t>(layer)].data(), bytes);
      const engine::LocalKv local{.k = k.data(),
                                  .v = v.data(),
                                  .dtype = DType::kBFloat16,
                                  .num_kv_heads = kHeads,
                                  .head_dim = kHeadDim,
                                  .num_rows = kRows};
      must(sink.stage_layer(layer, local));
      must(sink.write_layer(
          {.layer = layer, .local = local, .page_scores = scores, .num_pages = kPages}));
    }
    must(sink.finish());
    must(store_->seal(id, "lease", kLease));
  }

  // K, then V of a page by the reference; 0 past the prompt's end.
  std::vector<Float8> codes(int32_t layer, int32_t head, int64_t page) const {
    std::vector<Float8> all(2 * kHalf, Float8{0});
    const int64_t count = std::min<int64_t>(64, kRows - 64 * page) * kHeadDim;
    const int64_t first = (head * kRows + 64 * page) * kHeadDim;
    const auto& scale = geometry_.float8->of(layer, kFirstHead + head);
    for (const bool is_k : {true, false}) {
      const auto& from = (is_k ? k_ : v_)[static_cast<size_t>(layer)];
      kernels::ref::float8_encode({.x = from.data() + first,
                                   .dtype = DType::kBFloat16,
                                   .codes = all.data() + (is_k ? 0 : kHalf),
                                   .count = count,
                                   .scale = is_k ? scale.k : scale.v});
    }
    return all;
  }

  const kvstore::KvGeometry geometry_{.num_layers = kLayers,
                                      .num_kv_heads = kHeads,
                                      .first_kv_head = kFirstHead,
                                      .head_dim = kHeadDim,
                                      .dtype = DType::kBFloat16,
                                      .float8 = scales(std::get<bool>(GetParam()))};
  const std::vector<int64_t> pages_ = kvstore::consecutive_pages(0, kPages);
  std::vector<std::vector<uint16_t>> k_, v_;  // by layer, [kv heads, rows, head dim]
  std::unique_ptr<kernels::Device> near_ = kernels::make_cpu_device({.num_threads = 1});
  test::FarDevice far_{kernels::make_cpu_device({.num_threads = 1})};
  kernels::Device* device_ = std::get<Memory>(GetParam()) == Memory::kHosts ? near_.get() : &far_;
  std::unique_ptr<kvstore::KvStore> store_;
};

TEST_P(StoreFloat8Test, PagesHaveTheCodesOfTheReferenceInHalfTheBytes) {
  kvstore::KvGeometry wide = geometry_;
  wide.float8 = nullptr;
  EXPECT_EQ(2 * geometry_.page_bytes(), wide.page_bytes());
  write("a");
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t head = 0; head < kHeads; ++head) {
      const auto pinned = must(store_->pin_pages("a", "lease", layer, kFirstHead + head, pages_));
      for (int64_t page = 0; page < kPages; ++page) {
        const auto& found = pinned->pages()[static_cast<size_t>(page)];
        const auto expected = codes(layer, head, page);
        const auto bytes = std::as_bytes(std::span(expected));
        EXPECT_TRUE(std::ranges::equal(found.bytes, bytes)) << layer << " " << head << " " << page;
      }
    }
  }
}

TEST_P(StoreFloat8Test, DigestsBoundWhatTheCodesStandForTightly) {
  write("a");
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const float scale = geometry_.float8->of(layer, kFirstHead + 1).k;
    for (int64_t page = 0; page < kPages; ++page) {
      const auto pinned = must(store_->pin_pages("a", "lease", layer, kFirstHead + 1,
                                                 kvstore::consecutive_pages(page, 1)));
      const auto keys = codes(layer, 1, page);
      const auto digest = pinned->pages().front().digest;
      const int64_t num_rows = std::min<int64_t>(64, kRows - 64 * page);
      for (int32_t d = 0; d < kHeadDim; ++d) {
        const auto key = [&](int64_t row) {
          return to_float(keys[static_cast<size_t>(row * kHeadDim + d)]) * scale;
        };
        float low = key(0), high = key(0);
        for (int64_t row = 1; row < num_rows; ++row) {
          low = std::min(low, key(row));
          high = std::max(high, key(row));
        }
        double radius = 0;
        for (int64_t row = 0; row < num_rows; ++row) {
          radius += std::abs(key(row) - (double{low} + high) / 2);
        }
        EXPECT_EQ(digest[static_cast<size_t>(d)], low);
        EXPECT_EQ(digest[static_cast<size_t>(kHeadDim + d)], high);
        // A float32 sum of 64 terms of about 10: at most 64 roundings of 2^-24 each.
        EXPECT_NEAR(digest[static_cast<size_t>(2 * kHeadDim + d)],
                    radius / static_cast<double>(num_rows), 1e-4);
      }
    }
  }
}

TEST_P(StoreFloat8Test, AsAPrefixTheyComeBackAsWhatTheyStandFor) {
  write("a");
  constexpr int64_t kWhole = kPages - 1;
  std::vector<kvstore::CachedPage> cached;
  for (int64_t page = 0; page < kWhole; ++page) {
    cached.push_back({.page = page, .key = {static_cast<std::byte>(page + 1)}});
  }
  must(store_->remember("a", cached));
  must(store_->begin_request("b", kRows, std::span(pages_).subspan(kWhole), cached));
  const auto reader = must(PageReader::create(*device_, store_->geometry(), /*num_threads=*/2));
  constexpr int64_t kStride = 64 * kWhole + 7;
  const int64_t bytes = kHeads * kStride * kHeadDim * 2;
  const auto k = must(device_->allocate(bytes)), v = must(device_->allocate(bytes));
  // There is room for two pages of each head, but not for the stage of all pages: pages come when
  // they are asked for.
  if (std::get<Memory>(GetParam()) == Memory::kOwnAndShort)
    far_.refuse_larger_than(2 * kHalf * kHeads);
  const auto on_host = must(device_->allocate_host(2 * bytes));
  StorePins pins(*store_, "b");
  StorePrefix prefix(*device_, *reader, pins, kvstore::consecutive_pages(0, kWhole));
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const auto part = [&](int64_t first, int64_t count) {
      const int64_t offset = first * kHalf * 2;
      must(prefix.load(
          layer, first, count,
          {.k = k.as<std::byte>() + offset, .v = v.as<std::byte>() + offset, .stride = kStride}));
    };
    part(0, 2);
    part(2, 1);
    device_->copy(on_host.as<std::byte>(), k.data(), bytes);
    device_->copy(on_host.as<std::byte>() + bytes, v.data(), bytes);
    must(device_->synchronize(Deadline::after(std::chrono::seconds(60))));
    for (int32_t head = 0; head < kHeads; ++head) {
      const auto& scale = geometry_.float8->of(layer, kFirstHead + head);
      for (int64_t page = 0; page < kWhole; ++page) {
        const auto expected = codes(layer, head, page);
        for (int64_t i = 0; i < 2 * kHalf; ++i) {
          const auto* from = on_host.as<const BFloat16>() + (i < kHalf ? 0 : bytes / 2);
          const auto found = from[(head * kStride + 64 * page) * kHeadDim + i % kHalf];
          const float number =
              to_float(expected[static_cast<size_t>(i)]) * (i < kHalf ? scale.k : scale.v);
          ASSERT_EQ(found.bits, to_bfloat16(number).bits)
              << layer << " " << head << " " << page << " " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Memories, StoreFloat8Test,
                         testing::Combine(testing::Values(Memory::kHosts, Memory::kOwn,
                                                          Memory::kOwnAndShort),
                                          testing::Bool()),
                         [](const auto& instance) {
                           const Memory memory = std::get<Memory>(instance.param);
                           const std::string name = memory == Memory::kHosts ? "Hosts"
                                                    : memory == Memory::kOwn ? "Own"
                                                                             : "OwnAndShort";
                           return name + (std::get<bool>(instance.param) ? "ByHead" : "");
                         });

}  // namespace
}  // namespace millrace::worker
