// SPDX-License-Identifier: Apache-2.0
// Pages that arrive once and stay.

#include "decode/pool/host_pages.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace millrace::decode {
namespace {

using kvclient::PageName;

constexpr int64_t kBytes = 64;
constexpr int32_t kFirstHead = 2;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

// The bytes of a page say which page it is.
class Source final : public PageSource {
 public:
  std::function<Result<void>(std::span<const kvclient::NamedPage>)> on_fetch;
  int64_t num_fetched = 0;

  Result<void> fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency, Deadline) override {
    if (on_fetch) MR_RETURN_IF_ERROR(on_fetch(pages));
    for (const auto& [name, to] : pages) {
      ++num_fetched;
      std::fill_n(to, kBytes, byte_of(name));
    }
    return {};
  }
  static std::byte byte_of(const PageName& name) {
    return static_cast<std::byte>(name.layer * 100 + name.kv_head * 10 + name.page + 1);
  }
};

class HostPagesTest : public testing::Test {
 protected:
  static std::vector<PageName> all() {
    std::vector<PageName> names;
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t head = 0; head < 2; ++head) {
        for (int64_t page = 0; page < 4; ++page) names.push_back({layer, kFirstHead + head, page});
      }
    }
    return names;
  }
  Source source_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(16 * kBytes);
  HostPages pages_{source_,
                   {.num_layers = 2,
                    .first_kv_head = kFirstHead,
                    .num_kv_heads = 2,
                    .num_pages = 4,
                    .page_bytes = kBytes,
                    .memory = memory_.data(),
                    .num_kept = 16}};
};

TEST_F(HostPagesTest, EachComesOnceAndLiesAtItsNumber) {
  const auto names = all();
  ASSERT_TRUE(pages_.bring(std::span(names).first(5), FetchUrgency::kNeed, ample()).ok());
  EXPECT_EQ(source_.num_fetched, 5);
  EXPECT_FALSE(pages_.has_all());
  ASSERT_TRUE(pages_.bring(names, FetchUrgency::kFill, ample()).ok());
  EXPECT_EQ(source_.num_fetched, 16);
  EXPECT_TRUE(pages_.has_all());
  EXPECT_EQ(pages_.num_needed(), 5);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(memory_[i * kBytes], Source::byte_of(names[i])) << i;
  }
}

TEST_F(HostPagesTest, HasAllOnceThoseThatAreKeptAreThere) {
  const auto names = all();
  HostPages pages(source_, {.num_layers = 2,
                            .first_kv_head = kFirstHead,
                            .num_kv_heads = 2,
                            .num_pages = 4,
                            .page_bytes = kBytes,
                            .memory = memory_.data(),
                            .num_kept = 5});
  ASSERT_TRUE(pages.bring(std::span(names).first(4), FetchUrgency::kNeed, ample()).ok());
  EXPECT_FALSE(pages.has_all());
  ASSERT_TRUE(pages.bring(std::span(names).last(1), FetchUrgency::kFill, ample()).ok());
  EXPECT_TRUE(pages.has_all());
  EXPECT_EQ(source_.num_fetched, 5);
}

TEST_F(HostPagesTest, WhatFailedForOneIsFetchedAgainForAnother) {
  source_.on_fetch = [](auto) -> Result<void> { return Error(Errc::kPeerLost, "gone"); };
  const auto failed = pages_.bring(all(), FetchUrgency::kFill, ample());
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Errc::kPeerLost);
  source_.on_fetch = nullptr;
  EXPECT_TRUE(pages_.bring(all(), FetchUrgency::kNeed, ample()).ok());
  EXPECT_TRUE(pages_.has_all());
}

// A second reader waits for the first one's fetch, and gets its pages.
TEST_F(HostPagesTest, WhatIsOnItsWayIsNotFetchedTwice) {
  std::thread second;
  const auto names = all();
  source_.on_fetch = [&](auto) -> Result<void> {
    if (!second.joinable()) {
      second = std::thread([&] {
        EXPECT_TRUE(pages_.bring(std::span(names).first(3), FetchUrgency::kNeed, ample()).ok());
        EXPECT_EQ(memory_[0], Source::byte_of(names[0]));
      });
    }
    return {};
  };
  ASSERT_TRUE(pages_.bring(names, FetchUrgency::kFill, ample()).ok());
  second.join();
  EXPECT_EQ(source_.num_fetched, 16);
}

TEST_F(HostPagesTest, AWaitForAnothersFetchEndsAtTheDeadline) {
  const auto names = all();
  source_.on_fetch = [&](auto) -> Result<void> {
    source_.on_fetch = nullptr;
    const auto late =
        pages_.bring(names, FetchUrgency::kNeed, Deadline::after(std::chrono::milliseconds(1)));
    EXPECT_TRUE(!late.ok() && late.error().code == Errc::kDeadlineExceeded);
    return {};
  };
  EXPECT_TRUE(pages_.bring(names, FetchUrgency::kFill, ample()).ok());
}

}  // namespace
}  // namespace millrace::decode
