// SPDX-License-Identifier: Apache-2.0
// What rank 0 records about its group's prefixes, and what the next rank 0 reads of it, whatever
// happened to the file.
#include "worker/control/ledger_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "common/content/prefix_keys.h"
#include "tests/support/temp_directory.h"
#include "worker/control/prefix_ledger.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

PageContentKey page_key(int number) {
  PageContentKey key{};
  key[3] = static_cast<std::byte>(number);
  return key;
}

LedgerRecord record_of(int first, int count) {
  LedgerRecord record;
  for (int i = first; i < first + count; ++i) {
    record.entries.push_back({static_cast<uint64_t>(i), page_key(i)});
  }
  record.origins.add_origins()->set_num_tokens(static_cast<uint64_t>(first));
  return record;
}

class LedgerFileTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("ledger"); }
  LedgerFile open() const { return std::move(*LedgerFile::open(path())); }

  const test::TempDirectory directory_;
};

TEST_F(LedgerFileTest, WhatWasAppendedIsRead) {
  ASSERT_TRUE(open().append(record_of(1, 2)).ok());
  ASSERT_TRUE(open().append(record_of(3, 1)).ok());
  const auto read = open().read();
  ASSERT_TRUE(read.ok());
  auto expected = record_of(1, 2).entries;
  expected.push_back(record_of(3, 1).entries[0]);
  EXPECT_EQ(read->entries, expected);
  EXPECT_EQ(read->origins.origins_size(), 2);
}

TEST_F(LedgerFileTest, AFileCutOffAnywhereCountsUpToThere) {
  ASSERT_TRUE(open().append(record_of(1, 2)).ok());
  const auto first_bytes = std::filesystem::file_size(path());
  ASSERT_TRUE(open().append(record_of(3, 1)).ok());
  for (auto length = std::filesystem::file_size(path()); length-- > 0;) {
    std::filesystem::resize_file(path(), length);
    EXPECT_EQ(open().read()->entries.size(), length >= first_bytes ? 2u : 0u) << length;
  }
}

TEST_F(LedgerFileTest, AFlippedByteEndsWhatCounts) {
  ASSERT_TRUE(open().append(record_of(1, 2)).ok());
  std::ifstream file(path(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x81);
    directory_.write("ledger", damaged);
    EXPECT_THAT(open().read()->entries, IsEmpty()) << at;
  }
}

TEST_F(LedgerFileTest, ReplacedItHasNothingElse) {
  auto file = open();
  ASSERT_TRUE(file.append(record_of(1, 5)).ok());
  ASSERT_TRUE(file.replace(record_of(7, 1)).ok());
  ASSERT_TRUE(file.append(record_of(8, 1)).ok());
  EXPECT_EQ(open().read()->entries, record_of(7, 2).entries);
  EXPECT_FALSE(std::filesystem::exists(path() + ".new"));
}

TEST_F(LedgerFileTest, TheNextLedgerTellsOfBeginningsWhosePagesAreFound) {
  const auto find = [](const std::set<int>& there) {
    return [there](std::span<const PageContentKey> pages) {
      std::vector<bool> found;
      for (const auto& page : pages) {
        found.push_back(there.contains(std::to_integer<int>(page[3])));
      }
      return found;
    };
  };
  {
    PrefixLedger ledger;
    EXPECT_THAT(ledger.keep_in(open(), find({})).added(), IsEmpty());
    std::vector<PageContentKey> pages;
    for (int page = 0; page < 16; ++page) pages.push_back(page_key(page));
    auto change = ledger.add({.prefix_keys = std::vector<uint64_t>{11, 12},
                              .page_keys = pages,
                              .own_pages = {6, 7, 14, 15},
                              .origin = 3,
                              .tenant = 4});
    ASSERT_EQ(change.added_size(), 2);
    change.add_origins()->set_origin(3);
    ledger.keep(change);
  }
  const auto stored = [](uint64_t key) { return stored_prefix_key(key, 3, 4); };
  {
    PrefixLedger ledger;
    const auto told = ledger.keep_in(open(), find({7, 15}));
    EXPECT_THAT(told.added(), UnorderedElementsAre(stored(11), stored(12)));
    ASSERT_EQ(told.origins_size(), 1);
    EXPECT_EQ(told.origins(0).origin(), 3u);
    // And about what was dropped since.
    EXPECT_THAT(ledger.sweep(1, find({7})).gone(), ElementsAre(stored(12)));
  }
  {
    PrefixLedger ledger;
    EXPECT_THAT(ledger.keep_in(open(), find({7})).added(), ElementsAre(stored(11)));
  }
  PrefixLedger last;
  EXPECT_THAT(last.keep_in(open(), find({7, 15})).added(), ElementsAre(stored(11)));
}

}  // namespace
}  // namespace millrace::worker
