// SPDX-License-Identifier: Apache-2.0
// What the store holds after a layer went through the sink: bytes, digests and scores, page by
// page.

#include "worker/staging/store_sink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kvstore/kv_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/random_data.h"

namespace millrace::worker {
namespace {

constexpr int32_t kHeadDim = 8;
constexpr int32_t kFirstKvHead = 4;  // not 0, so that the model's and the rank's heads differ
constexpr int64_t kPromptTokens = 5 * 64 + 11;
constexpr int64_t kPromptPages = 6;

// A rank with two kv heads that holds pages 1, 2 and 5 of the prompt, the last one partial.
class StoreSinkTest : public ::testing::TestWithParam<DType> {
 protected:
  StoreSinkTest() {
    geometry_ = {.num_layers = 2,
                 .num_kv_heads = 2,
                 .first_kv_head = kFirstKvHead,
                 .head_dim = kHeadDim,
                 .dtype = GetParam()};
    auto store = kvstore::make_kv_store({.device_bytes = 16 * geometry_.page_bytes(),
                                         .host_bytes = 16 * geometry_.record_bytes(),
                                         .geometry = geometry_},
                                        clock_);
    MR_CHECK(store.ok(), "{}", store.error().to_string());
    store_ = std::move(*store);
    k_ = elements(/*seed=*/1);
    v_ = elements(/*seed=*/2);
    for (int64_t i = 0; i < 2 * kPromptPages; ++i) scores_.push_back(static_cast<float>(i) / 16);
  }

  // Every layer of the request through one sink.
  Result<void> write_layers() {
    MR_ASSIGN_OR_RETURN(const auto writer,
                        PageWriter::create(*device_, *store_, geometry_, /*num_threads=*/0));
    StoreSink sink(*device_, *store_, *writer, "a", pages_);
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      const engine::LocalKv local{.k = k_.data(),
                                  .v = v_.data(),
                                  .dtype = GetParam(),
                                  .num_kv_heads = 2,
                                  .head_dim = kHeadDim,
                                  .num_rows = kRows};
      MR_RETURN_IF_ERROR(sink.stage_layer(layer, local));
      MR_RETURN_IF_ERROR(sink.write_layer(
          {.layer = layer, .local = local, .page_scores = scores_, .num_pages = kPromptPages}));
    }
    return {};
  }
  // The same, into a request that is sealed.
  void write_request() {
    ASSERT_TRUE(store_->begin_request("a", kPromptTokens, pages_).ok());
    const auto written = write_layers();
    ASSERT_TRUE(written.ok()) << written.error().to_string();
    ASSERT_TRUE(store_->seal("a", "lease", std::chrono::seconds(60)).ok());
  }
  std::unique_ptr<kvstore::PinnedPages> pin(int32_t layer, int32_t head, int64_t page) {
    auto pinned = store_->pin_pages("a", "lease", layer, kFirstKvHead + head,
                                    kvstore::consecutive_pages(page, 1));
    MR_CHECK(pinned.ok(), "{}", pinned.error().to_string());
    return std::move(*pinned);
  }

  int64_t row_bytes() const { return kHeadDim * dtype_bytes(GetParam()); }
  // Rows of the rank's `ordinal`-th page: 64 of each but the last.
  static int64_t page_rows(size_t ordinal) { return ordinal < 2 ? 64 : 11; }
  // K or V of one page, as the page must hold it.
  std::vector<std::byte> page_half(const std::vector<std::byte>& all, int32_t head,
                                   size_t ordinal) const {
    std::vector<std::byte> half(static_cast<size_t>(64 * row_bytes()));
    const int64_t first = head * kRows + 64 * static_cast<int64_t>(ordinal);
    std::memcpy(half.data(), all.data() + first * row_bytes(),
                static_cast<size_t>(page_rows(ordinal) * row_bytes()));
    return half;
  }
  float k_at(int32_t head, size_t ordinal, int64_t row, int32_t d) const {
    const int64_t at = (head * kRows + 64 * static_cast<int64_t>(ordinal) + row) * kHeadDim + d;
    if (GetParam() == DType::kFloat32) return reinterpret_cast<const float*>(k_.data())[at];
    return to_float(reinterpret_cast<const BFloat16*>(k_.data())[at]);
  }

  static constexpr int64_t kRows = 2 * 64 + 11;
  const std::vector<int64_t> pages_ = {1, 2, 5};
  kvstore::KvGeometry geometry_;
  ::millrace::testing::FakeClock clock_;
  std::unique_ptr<kvstore::KvStore> store_;
  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({.num_threads = 1});
  std::vector<std::byte> k_, v_;  // [2 kv heads, kRows, kHeadDim]
  std::vector<float> scores_;     // [2 kv heads, kPromptPages]

 private:
  static std::vector<std::byte> elements(uint64_t seed) {
    const auto values = test::random_normals(seed, 2 * kRows * kHeadDim);
    const auto narrow = test::narrow(values);
    const auto bytes = GetParam() == DType::kFloat32 ? std::as_bytes(std::span(values))
                                                     : std::as_bytes(std::span(narrow));
    return {bytes.begin(), bytes.end()};
  }
};

TEST_P(StoreSinkTest, APageIsItsTokensKThenVAndZeroPastThePromptsEnd) {
  write_request();
  for (int32_t head = 0; head < 2; ++head) {
    for (size_t i = 0; i < pages_.size(); ++i) {
      auto expected = page_half(k_, head, i);
      const auto v = page_half(v_, head, i);
      expected.insert(expected.end(), v.begin(), v.end());
      for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
        const auto pinned = pin(layer, head, pages_[i]);
        const auto bytes = pinned->pages()[0].bytes;
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end()))
            << "layer " << layer << ", head " << head << ", page " << pages_[i];
      }
    }
  }
}

TEST_P(StoreSinkTest, ADigestBoundsTheKeysOfItsPageAndNoOthers) {
  write_request();
  for (int32_t head = 0; head < 2; ++head) {
    for (size_t i = 0; i < pages_.size(); ++i) {
      const auto pinned = pin(1, head, pages_[i]);
      const auto digest = pinned->pages()[0].digest;
      ASSERT_EQ(digest.size(), size_t{3} * kHeadDim);
      for (int32_t d = 0; d < kHeadDim; ++d) {
        float low = k_at(head, i, 0, d), high = low;
        for (int64_t row = 1; row < page_rows(i); ++row) {
          low = std::min(low, k_at(head, i, row, d));
          high = std::max(high, k_at(head, i, row, d));
        }
        double radius = 0;
        for (int64_t row = 0; row < page_rows(i); ++row) {
          radius += std::abs(k_at(head, i, row, d) - (double{low} + high) / 2);
        }
        radius /= static_cast<double>(page_rows(i));
        EXPECT_EQ(digest[static_cast<size_t>(d)], low) << "page " << pages_[i];
        EXPECT_EQ(digest[static_cast<size_t>(kHeadDim + d)], high);
        // A float32 sum of 64 terms of about 1: at most 64 roundings of 2^-24 each.
        EXPECT_NEAR(digest[static_cast<size_t>(2 * kHeadDim + d)], radius, 1e-5);
      }
    }
  }
}

TEST_P(StoreSinkTest, APageHasItsOwnScoreAmongThoseOfTheWholePrompt) {
  write_request();
  for (int32_t head = 0; head < 2; ++head) {
    for (const int64_t page : pages_) {
      EXPECT_EQ(pin(0, head, page)->pages()[0].score,
                scores_[static_cast<size_t>(head * kPromptPages + page)])
          << "head " << head << ", page " << page;
    }
  }
}

TEST_P(StoreSinkTest, WhatTheStoreRefusesEndsTheLayer) {
  const auto refused = write_layers();  // of a request that was never begun
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kNotFound) << refused.error().to_string();
  EXPECT_EQ(store_->stats().pages_written, 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, StoreSinkTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

}  // namespace
}  // namespace millrace::worker
