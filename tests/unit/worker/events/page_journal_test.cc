// SPDX-License-Identifier: Apache-2.0
// What rank 0 records about published pages, and what the group's next start reads of it.
#include "worker/events/page_journal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
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
  made.prefix_key = static_cast<uint64_t>(number % 2);
  for (int32_t i = 0; number < 50 && i < 64; ++i) made.token_ids.push_back(1000 * number + i);
  if (parent == 0) made.cache_salt = "salt";
  return made;
}

JournalFile::Contents of(std::vector<StoredPage> pages) {
  return {.pages = std::move(pages), .origins = {}};
}

bool all(const PageContentKey&) {
  return true;
}

class PageJournalTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("events"); }
  JournalFile open() const { return std::move(*JournalFile::open(path())); }
  std::vector<StoredPage> read(const JournalFile::Filter& is_wanted = all) const {
    auto contents = open().read(is_wanted, most_pages_);
    EXPECT_TRUE(contents.ok());
    return std::move(contents->pages);
  }
  static Result<void> append(JournalFile file, std::vector<StoredPage> pages) {
    return file.append({.pages = std::move(pages), .origins = {}});
  }
  void make_pipe(const std::string& path) {
    ASSERT_EQ(mkfifo(path.c_str(), S_IRUSR | S_IWUSR), 0);
    pipe_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(pipe_.valid());
  }
  // Reads the pipe until the journal's thread has finished its last record.
  void release() {
    std::array<char, 1 << 16> bytes;
    while (::read(pipe_.get(), bytes.data(), bytes.size()) > 0) continue;
  }

  const test::TempDirectory directory_;
  size_t most_pages_ = 1000;
  FileDescriptor pipe_;
};

TEST_F(PageJournalTest, PagesAreReadAsTheyWereNoted) {
  const std::vector<StoredPage> chain = {page(1, 0), page(2, 1), page(3, 2)};
  ASSERT_TRUE(append(open(), chain).ok());
  ASSERT_TRUE(append(open(), {page(4, 2)}).ok());
  EXPECT_THAT(read(), ElementsAre(chain[0], chain[1], chain[2], page(4, 2)));
}

TEST_F(PageJournalTest, EachPageIsReadOnceAndBehindItsParent) {
  ASSERT_TRUE(append(open(), {page(2, 1), page(1, 0), page(1, 0), page(3, 1)}).ok());
  EXPECT_THAT(read(), ElementsAre(page(1, 0), page(3, 1)));
  // And a page that follows an unwanted one is unwanted, too.
  ASSERT_TRUE(append(open(), {page(4, 3), page(5, 1)}).ok());
  EXPECT_THAT(read([](const PageContentKey& k) { return k != key(3); }),
              ElementsAre(page(1, 0), page(5, 1)));
}

TEST_F(PageJournalTest, ADamagedPageCostsItselfAndWhatFollowsIt) {
  const std::vector<StoredPage> written = {page(1, 0), page(2, 1), page(3, 2), page(4, 1)};
  ASSERT_TRUE(append(open(), written).ok());
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
  ASSERT_TRUE(append(open(), {page(1, 0), page(2, 1)}).ok());
  {
    PageJournal journal(open(), 1000);
    journal.begin_with(of({page(1, 0)}));
    journal.add(of({page(5, 1)}), [] { return PageJournal::Held(); });
    journal.add(of({}), [] { return PageJournal::Held(); });
  }  // which waits for the writes
  EXPECT_THAT(read(), ElementsAre(page(1, 0), page(5, 1)));
}

TEST_F(PageJournalTest, WhatTheGroupHasNoMoreIsLeftOutOnceThereIsMuch) {
  {
    PageJournal journal(open(), /*most_pages=*/3);
    journal.begin_with(of({}));
    int num_asked = 0;
    const auto held = [&num_asked] {
      ++num_asked;
      return PageJournal::Held{1, 4, 6};
    };
    journal.add(of({page(1, 0), page(2, 1), page(3, 2)}), held);
    journal.add(of({page(4, 1), page(5, 4)}), held);
    EXPECT_EQ(num_asked, 0);
    journal.add(of({page(6, 5), page(8, 5)}), held);
    EXPECT_EQ(num_asked, 1);
    journal.add(of({page(7, 4)}), held);
  }
  // 6 follows a page that is gone.
  EXPECT_THAT(read(), ElementsAre(page(1, 0), page(4, 1), page(7, 4)));
}

TEST_F(PageJournalTest, AFileThatCannotBeWrittenEndsTheNotesAndNothingElse) {
  std::filesystem::create_directory(path() + ".new");
  PageJournal journal(open(), 1000);
  journal.begin_with(of({page(1, 0)}));
  for (int i = 2; i < 200; ++i) journal.add(of({page(i, 1)}), [] { return PageJournal::Held(); });
}

TEST_F(PageJournalTest, TheLatestPlansAreRead) {
  for (uint64_t i = 1; i <= 100; ++i) {
    auto contents = of({page(static_cast<int>(i), 0)});
    contents.origins.emplace_back().set_num_tokens(i);
    ASSERT_TRUE(open().append(contents).ok());
  }
  const auto contents = open().read(all, 70);
  ASSERT_TRUE(contents.ok());
  ASSERT_EQ(contents->origins.size(), 64u);
  EXPECT_EQ(contents->origins.back().num_tokens(), 100u);
  EXPECT_EQ(contents->pages.size(), 70u);
}

// The contents with which a journal begins are written to a second file that replaces the first:
// here that file is a pipe that nobody reads, which takes 64 KiB.
TEST_F(PageJournalTest, PromptsGoOnWhileTheFileHangs) {
  make_pipe(path() + ".new");
  {
    PageJournal journal(open(), 1'000'000);
    std::vector<StoredPage> many(2048, page(1, 0));
    journal.begin_with(of(many));
    for (int prompt = 0; prompt < 100; ++prompt) {
      journal.add(of(many), [] { return PageJournal::Held(); });
    }
  }  // which leaves the write that hangs
  release();
}

}  // namespace
}  // namespace millrace::worker
