// SPDX-License-Identifier: Apache-2.0
// Which pages come first, and when a cache counts as complete.

#include "decode/pool/page_fill.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>

namespace millrace::decode {
namespace {

using kvclient::PageName;

constexpr int32_t kLayers = 2;
constexpr int64_t kPages = 64;  // of a layer, of one kv head
constexpr int64_t kBytes = 8;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

std::vector<PageName> names(int32_t layer, int64_t first, int64_t count) {
  std::vector<PageName> out;
  for (int64_t page = first; page < first + count; ++page) out.push_back({layer, 0, page});
  return out;
}

// Pages arrive once they are let through, or never.
class Source final : public PageSource {
 public:
  Result<void> fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency, Deadline) override {
    std::unique_lock lock(mutex_);
    ++num_asked_;
    for (const auto& page : pages) asked_.emplace(page.name.layer, page.name.page);
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || broken_; });
    if (broken_) return Error(Errc::kPeerLost, "the rank is gone");
    return {};
  }
  void open() { set(open_); }
  void break_off() { set(broken_); }
  void wait_until_asked(int times) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_asked_ >= times; });
  }
  bool was_asked(int32_t layer, int64_t page) {
    const std::lock_guard lock(mutex_);
    return asked_.contains({layer, page});
  }

 private:
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, broken_ = false;
  int num_asked_ = 0;
  std::set<std::pair<int32_t, int64_t>> asked_;
};

class PageFillTest : public testing::Test {
 protected:
  void add(int32_t layer, int64_t hot) {
    fill_.add_layer(names(layer, 0, hot), names(layer, hot, kPages - hot));
  }

  Source source_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kLayers * kPages * kBytes);
  HostPages pages_{source_,
                   {.num_layers = kLayers,
                    .first_kv_head = 0,
                    .num_kv_heads = 1,
                    .num_pages = kPages,
                    .page_bytes = kBytes,
                    .memory = memory_.data(),
                    .num_kept = kLayers * kPages}};
  PageFill fill_{pages_, kLayers, ample()};
};

TEST_F(PageFillTest, HotPagesOfAllLayersComeFirst) {
  add(0, 4);
  add(1, 8);
  fill_.start();
  source_.wait_until_asked(3);
  for (int64_t page = 0; page < 4; ++page) EXPECT_TRUE(source_.was_asked(0, page)) << page;
  for (int64_t page = 0; page < 8; ++page) EXPECT_TRUE(source_.was_asked(1, page)) << page;
  source_.open();
  ASSERT_TRUE(fill_.wait_for_hot(ample()).ok());
  ASSERT_TRUE(fill_.wait_for_layers(kLayers, ample()).ok());
  EXPECT_TRUE(pages_.has_all());
}

TEST_F(PageFillTest, CountsTheLayersThatAreWhole) {
  source_.open();
  fill_.start();
  EXPECT_EQ(fill_.layers_here(), 0);
  add(0, 4);
  ASSERT_TRUE(fill_.wait_for_layers(1, ample()).ok());
  EXPECT_EQ(fill_.layers_here(), 1);
  add(1, 0);
  ASSERT_TRUE(fill_.wait_for_layers(2, ample()).ok());
  EXPECT_EQ(fill_.layers_here(), 2);
}

TEST_F(PageFillTest, ALayerThatIsThereDoesNotWaitForTheNext) {
  source_.open();
  fill_.start();
  add(0, 0);
  source_.wait_until_asked(1);
  EXPECT_EQ(
      fill_.wait_for_layers(kLayers, Deadline::after(std::chrono::milliseconds(1))).error().code,
      Errc::kDeadlineExceeded);  // of the second layer nothing is known
  add(1, 0);
  ASSERT_TRUE(fill_.wait_for_layers(kLayers, ample()).ok());
  EXPECT_TRUE(pages_.has_all());
}

TEST_F(PageFillTest, ACacheWithoutHotPagesHasThemAll) {
  add(0, 0);
  add(1, 0);
  EXPECT_TRUE(fill_.wait_for_hot(ample()).ok());
}

TEST_F(PageFillTest, APullThatFailsEndsIt) {
  add(0, 1);
  add(1, 1);
  fill_.start();
  source_.break_off();
  EXPECT_EQ(fill_.wait_for_layers(kLayers, ample()).error().code, Errc::kPeerLost);
}

TEST_F(PageFillTest, EndsWithoutLayersThatNeverCome) {
  source_.open();
  fill_.start();
  add(0, 2);
  source_.wait_until_asked(1);
}

}  // namespace
}  // namespace millrace::decode
