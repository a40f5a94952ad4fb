// SPDX-License-Identifier: Apache-2.0
// A prompt's pages stay if it succeeded, and only then.
#include "worker/prompt/prompt_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/worker/group/small_store.h"

namespace millrace::worker {
namespace {

using ::testing::HasSubstr;

constexpr auto kLease = std::chrono::seconds(10);

class PromptPagesTest : public ::testing::Test {
 protected:
  PromptPages pages(const std::string& request_id, int64_t num_pages) {
    std::vector<int64_t> numbers;
    for (int64_t page = 0; page < num_pages; ++page) numbers.push_back(page);
    return {*device_, *store_, *writer_, *reader_, request_id, numbers};
  }
  // Writes the prompt's one layer, of zeros.
  static Result<void> write(PromptPages& of, int64_t num_pages) {
    const std::vector<float> rows(static_cast<size_t>(num_pages * 64 * 8));
    const std::vector<float> scores(static_cast<size_t>(num_pages), 1.0f);
    const engine::LocalKv local{.k = rows.data(),
                                .v = rows.data(),
                                .dtype = DType::kFloat32,
                                .num_kv_heads = 1,
                                .head_dim = 8,
                                .num_rows = num_pages * 64};
    MR_RETURN_IF_ERROR(of.sink().stage_layer(0, local));
    MR_RETURN_IF_ERROR(of.sink().write_layer(
        {.layer = 0, .local = local, .page_scores = scores, .num_pages = num_pages}));
    return of.sink().finish();
  }
  bool readable(const std::string& request_id) const {
    return store_->pin_pages(request_id, "lease", 0, 0, kvstore::consecutive_pages(0, 1)).ok();
  }

  ::millrace::testing::FakeClock clock_;
  std::unique_ptr<kvstore::KvStore> store_ = test::small_store(clock_, /*num_pages=*/4);
  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({.num_threads = 1});
  std::unique_ptr<PageWriter> writer_ =
      *PageWriter::create(*device_, *store_, store_->geometry(), /*num_threads=*/0);
  std::unique_ptr<PageReader> reader_ =
      *PageReader::create(*device_, store_->geometry(), /*num_threads=*/0);
};

TEST_F(PromptPagesTest, StayWhenTheyAreSealedAndKept) {
  {
    auto kept = pages("a", 2);
    ASSERT_TRUE(kept.begin(128).ok());
    ASSERT_TRUE(write(kept, 2).ok());
    const auto placed = kept.seal("lease", kLease);
    ASSERT_TRUE(placed.ok()) << placed.error().to_string();
    kept.keep();
  }
  EXPECT_TRUE(readable("a"));
  clock_.advance(kLease);
  EXPECT_FALSE(readable("a"));
}

TEST_F(PromptPagesTest, GoWhenAnotherRankFailedToSealItsOwn) {
  {
    auto sealed = pages("a", 2);
    ASSERT_TRUE(sealed.begin(128).ok());
    ASSERT_TRUE(write(sealed, 2).ok());
    ASSERT_TRUE(sealed.seal("lease", kLease).ok());
  }
  EXPECT_FALSE(readable("a"));
  EXPECT_EQ(store_->stats().pages_available, 4);
}

TEST_F(PromptPagesTest, AreReadableBeforeTheEndOnceOpened) {
  auto open = pages("a", 2);
  ASSERT_TRUE(open.begin(128).ok());
  ASSERT_TRUE(open.open("lease").ok());
  EXPECT_FALSE(readable("a"));
  ASSERT_TRUE(write(open, 2).ok());
  EXPECT_TRUE(readable("a"));
}

TEST_F(PromptPagesTest, OfARequestWithoutRoomTakeNothingAlong) {
  test::hold(*store_, "held", "lease", kLease);
  {
    auto second = pages("held", 1);
    const auto refused = second.begin(64);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("already exists"));
  }
  {
    auto big = pages("big", 4);
    EXPECT_EQ(big.begin(256).error().code, Errc::kExhausted);
  }
  EXPECT_TRUE(readable("held"));
}

}  // namespace
}  // namespace millrace::worker
