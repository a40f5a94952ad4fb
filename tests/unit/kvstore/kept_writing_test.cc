// SPDX-License-Identifier: Apache-2.0
// Prefixes kept on a disk that hangs: what was written in time is found after the next start, and
// nobody waits for the rest.

#include <memory>

#include "tests/unit/kvstore/kept_pages_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class KeptWritingTest : public KeptPagesTest {
 protected:
  // A prompt leaves its three columns, on a disk that hangs after this many pages.
  void leave_on(int64_t hangs_after, int64_t host_slots = kHostSlots) {
    start(std::make_shared<HangingDisk>(hangs_after), PrefixArchive::Step::kPageWritten,
          host_slots);
    leave();
  }
  // No thread may outlive the test: opening the files waits until an abandoned write has ended.
  ~KeptWritingTest() override {
    if (disk_) disk_->release();
    start();
  }
  bool tend() { return store_->tend(Deadline::after(Duration::zero())); }
  // The thread that tends the store has begun a write that does not return.
  void tend_until_it_hangs() {
    ASSERT_TRUE(tend());
    disk_->wait_until_it_hangs();
  }
};

TEST_F(KeptWritingTest, ADiskThatAnswersTakesAll) {
  leave_on(1000);
  EXPECT_EQ(store_->keep_cached(kPatience), 0);
  EXPECT_EQ(disk_->num_used(), 3 * kRows);
  EXPECT_EQ(store_->stats().pages_kept, 3 * kRows);
}

TEST_F(KeptWritingTest, AWriteThatHangsEndsWithTheTimeForIt) {
  leave_on(kRows + 4);
  EXPECT_EQ(store_->keep_cached(kPatience), 2 * kRows);
  EXPECT_EQ(store_->stats().pages_kept, kRows);
}

TEST_F(KeptWritingTest, AStoreEndsWhileAWriteHangs) {
  leave_on(kRows + 4);
  store_->keep_cached(kPatience);
  const auto disk = disk_;
  store_.reset();
  disk->release();
  start();
  EXPECT_EQ(disk->num_used(), kRows + 5) << "it ends with its page";
  EXPECT_THAT(read_for(kPatience), ElementsAre(true, false, false));
}

TEST_F(KeptWritingTest, TheThreadThatTendsComesBack) {
  leave_on(4);
  tend_until_it_hangs();
  EXPECT_TRUE(tend()) << "it is under way";
  EXPECT_EQ(store_->keep_cached(Duration::zero()), 3 * kRows);
}

TEST_F(KeptWritingTest, APromptTakesTheRoomOfAColumnThatIsBeingWritten) {
  leave_on(4, 3 * kRows);
  tend_until_it_hangs();
  EXPECT_TRUE(begin("b", 3).ok());
}

TEST_F(KeptWritingTest, ADiskThatComesBackTakesTheRest) {
  leave_on(4);
  tend_until_it_hangs();
  disk_->release();
  EXPECT_EQ(store_->keep_cached(kPatience), 0);
  start();
  EXPECT_THAT(read_for(kPatience), Each(true));
  expect_prefix();
}

}  // namespace
}  // namespace millrace::kvstore
