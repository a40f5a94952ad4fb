// SPDX-License-Identifier: Apache-2.0
// What rank 0 records about published pages, and what the group's next start reads of it.
#include "worker/events/page_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/support/temp_directory.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

PageContentKey key(int number) {
  PageContentKey made{};
  made.back() = static_cast<std::byte>(number);
  return made;
}

// Page `number` after page `parent`; 0: none.
StoredPage page(int number, int parent) {
  StoredPage made{.key = key(number)};
  if (parent != 0) made.parent = key(parent);
  for (size_t i = 0; i < made.token_ids.size(); ++i) {
    made.token_ids[i] = 1000 * number + static_cast<int32_t>(i);
  }
  if (parent == 0) made.cache_salt = "salt";
  return made;
}

bool all(const PageContentKey&) {
  return true;
}

class PageJournalTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("events"); }
  JournalFile open() const { return std::move(*JournalFile::open(path())); }
  std::vector<StoredPage> read(const JournalFile::Filter& is_wanted = all) const {
    auto pages = open().read(is_wanted);
    EXPECT_TRUE(pages.ok());
    return std::move(*pages);
  }

  const test::TempDirectory directory_;
};

TEST_F(PageJournalTest, PagesAreReadAsTheyWereNoted) {
  const std::vector<StoredPage> chain = {page(1, 0), page(2, 1), page(3, 2)};
  ASSERT_TRUE(open().append(chain).ok());
  ASSERT_TRUE(open().append(std::vector{page(4, 2)}).ok());
  EXPECT_THAT(read(), ElementsAre(chain[0], chain[1], chain[2], page(4, 2)));
}

TEST_F(PageJournalTest, EachPageIsReadOnceAndBehindItsParent) {
  ASSERT_TRUE(open().append(std::vector{page(2, 1), page(1, 0), page(1, 0), page(3, 1)}).ok());
  EXPECT_THAT(read(), ElementsAre(page(1, 0), page(3, 1)));
  // And a page that follows an unwanted one is unwanted, too.
  ASSERT_TRUE(open().append(std::vector{page(4, 3), page(5, 1)}).ok());
  EXPECT_THAT(read([](const PageContentKey& k) { return k != key(3); }),
              ElementsAre(page(1, 0), page(5, 1)));
}

TEST_F(PageJournalTest, ADamagedPageCostsItselfAndWhatFollowsIt) {
  const std::vector<StoredPage> written = {page(1, 0), page(2, 1), page(3, 2), page(4, 1)};
  ASSERT_TRUE(open().append(written).ok());
  std::ifstream file(path(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    directory_.write("events", damaged);
    std::set<PageContentKey> known;
    for (const auto& one : read()) {
      EXPECT_THAT(written, ::testing::Contains(one)) << at;
      EXPECT_TRUE(!one.parent || known.contains(*one.parent)) << at;
      known.insert(one.key);
    }
    EXPECT_LT(known.size(), written.size()) << at;
  }
}

TEST_F(PageJournalTest, NothingIsReadOfAnotherFormatOrOfNoise) {
  auto file = *RecordFile::open(path());
  std::string other(400, '\2');
  ASSERT_TRUE(file.append(std::vector<std::string>{other, "", "short"}).ok());
  EXPECT_THAT(read(), IsEmpty());
  directory_.write("events", std::string(5000, '\7'));
  EXPECT_THAT(read(), IsEmpty());
}

TEST_F(PageJournalTest, ItBeginsWithWhatItIsGivenAndGoesOn) {
  ASSERT_TRUE(open().append(std::vector{page(1, 0), page(2, 1)}).ok());
  {
    PageJournal journal(open());
    journal.begin_with({page(1, 0)});
    journal.add({page(5, 1)}, [] { return PageJournal::Held(); });
    journal.add({}, [] { return PageJournal::Held(); });
  }  // which waits for the writes
  EXPECT_THAT(read(), ElementsAre(page(1, 0), page(5, 1)));
}

TEST_F(PageJournalTest, WhatTheGroupHasNoMoreIsLeftOutOnceThereIsMuch) {
  {
    PageJournal journal(open(), /*most_records=*/5);
    journal.begin_with({});
    int num_asked = 0;
    const auto held = [&num_asked] {
      ++num_asked;
      return PageJournal::Held{1, 4, 6};
    };
    journal.add({page(1, 0), page(2, 1), page(3, 2)}, held);
    journal.add({page(4, 1), page(5, 4)}, held);
    EXPECT_EQ(num_asked, 0);
    journal.add({page(6, 5)}, held);
    EXPECT_EQ(num_asked, 1);
    journal.add({page(7, 4)}, held);
  }
  // 6 follows a page that is gone.
  EXPECT_THAT(read(), ElementsAre(page(1, 0), page(4, 1), page(7, 4)));
}

TEST_F(PageJournalTest, AFileThatCannotBeWrittenEndsTheNotesAndNothingElse) {
  std::filesystem::create_directory(path() + ".new");
  PageJournal journal(open());
  journal.begin_with({page(1, 0)});
  for (int i = 2; i < 200; ++i) journal.add({page(i, 1)}, [] { return PageJournal::Held(); });
}

}  // namespace
}  // namespace millrace::worker
