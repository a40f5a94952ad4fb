// SPDX-License-Identifier: Apache-2.0
// Columns in files: the next process finds them, whatever happened to the one before, or does not
// find them at all.

#include "kvstore/archive/prefix_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "common/checksum.h"
#include "tests/support/temp_directory.h"

namespace millrace::kvstore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr ArchiveLayout kLayout{.num_rows = 3, .page_bytes = 1024, .digest_bytes = 12};
constexpr int64_t kSlotAndRecord = 4096 + kArchiveRecordBytes;

// The content of a column follows from its key alone.
struct SomeColumn {
  explicit SomeColumn(int number) {
    key[0] = static_cast<std::byte>(number);
    key[31] = std::byte{1};
    for (int row = 0; row < kLayout.num_rows; ++row) {
      auto& page = pages.emplace_back(static_cast<size_t>(kLayout.page_bytes));
      for (size_t i = 0; i < page.size(); ++i) {
        page[i] = static_cast<std::byte>(static_cast<size_t>(number * 31 + row * 7) + i * i);
      }
      checksums.push_back(checksum(page));
      for (int i = 0; i < 3; ++i)
        digests.push_back(static_cast<float>(number * 100 + row * 10 + i));
    }
  }

  PageContentKey key{};
  std::vector<std::vector<std::byte>> pages;
  std::vector<uint64_t> checksums;
  std::vector<float> digests;
};

Result<void> save(PrefixArchive& archive, int number, int64_t page, int64_t sequence = 0) {
  const SomeColumn column(number);
  return archive.save({.key = column.key,
                       .page = page,
                       .sequence = sequence,
                       .digests = column.digests,
                       .checksums = column.checksums},
                      [&](int64_t row) -> Result<std::span<const std::byte>> {
                        return std::span<const std::byte>(column.pages[static_cast<size_t>(row)]);
                      });
}

// The page that the column is of; none if it is not there. Its content must never differ.
std::optional<int64_t> load(PrefixArchive& archive, int number) {
  const SomeColumn column(number);
  int64_t page = -1;
  int64_t next_row = 0;
  bool same = true;
  const auto loaded = archive.load(
      column.key,
      [&](const PrefixArchive::Table& table) -> Result<void> {
        page = table.page;
        same = same && std::ranges::equal(table.digests, column.digests) &&
               std::ranges::equal(table.checksums, column.checksums);
        return {};
      },
      [&](int64_t row, std::span<const std::byte> bytes) -> Result<void> {
        same = same && row == next_row++ &&
               std::ranges::equal(bytes, column.pages[static_cast<size_t>(row)]);
        return {};
      });
  if (!loaded.ok()) return std::nullopt;
  EXPECT_TRUE(same && next_row == kLayout.num_rows) << "column " << number;
  return page;
}

class PrefixArchiveTest : public ::testing::Test {
 protected:
  PrefixArchive::Options options(int64_t num_slots = 8) const {
    return {.directory = directory_.path(),
            .name = "kept",
            .identity = "model a",
            .max_bytes = num_slots * kSlotAndRecord,
            .lock_patience = Duration::zero()};
  }
  std::unique_ptr<PrefixArchive> open(int64_t num_slots = 8) const {
    auto archive = PrefixArchive::open(options(num_slots), kLayout);
    EXPECT_TRUE(archive.ok()) << archive.error().to_string();
    return std::move(archive).value();
  }
  std::string index() const { return directory_.file("kept.index"); }
  std::string slots() const { return directory_.file("kept.slots"); }
  // Writes columns 1 to `count`, page by page, and closes the archive.
  void leave(int count) const {
    const auto archive = open();
    for (int number = 1; number <= count; ++number) {
      ASSERT_TRUE(save(*archive, number, number - 1).ok());
    }
  }
  static std::vector<PageContentKey> keys_by_use(const PrefixArchive& archive) {
    std::vector<PageContentKey> keys;
    for (const auto& use : archive.by_use()) keys.push_back(use.key);
    return keys;
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const test::TempDirectory directory_;
};

TEST_F(PrefixArchiveTest, WhatWasSavedIsFoundByTheNextProcess) {
  leave(3);
  const auto archive = open();
  EXPECT_EQ(archive->stats().columns, 3);
  for (int number = 1; number <= 3; ++number) EXPECT_EQ(load(*archive, number), number - 1);
  EXPECT_EQ(load(*archive, 4), std::nullopt);
}

TEST_F(PrefixArchiveTest, TheColumnUsedLeastLatelyGoesTheDeepestOfAPromptFirst) {
  const auto archive = open(/*num_slots=*/3);
  ASSERT_TRUE(save(*archive, 1, 0, /*sequence=*/5).ok());
  ASSERT_TRUE(save(*archive, 2, 1, 5).ok());
  ASSERT_TRUE(save(*archive, 3, 0, 6).ok());
  archive->touch(SomeColumn(1).key, 7);
  ASSERT_TRUE(save(*archive, 4, 0, 7).ok());
  EXPECT_THAT(keys_by_use(*archive),
              ElementsAre(SomeColumn(4).key, SomeColumn(1).key, SomeColumn(3).key));
  // It would be the first to go itself, so it takes no other column's place.
  ASSERT_TRUE(save(*archive, 5, 9, 6).ok());
  EXPECT_FALSE(archive->contains(SomeColumn(5).key));
  EXPECT_EQ(archive->stats().evictions, 1);
}

TEST_F(PrefixArchiveTest, OrderOfUseOutlivesTheProcessAndLaterProcessesComeLater) {
  {
    const auto archive = open(3);
    ASSERT_TRUE(save(*archive, 1, 0, 1000).ok());
    ASSERT_TRUE(save(*archive, 2, 0, 2000).ok());
    archive->touch(SomeColumn(1).key, 3000);
  }
  const auto archive = open(3);
  ASSERT_TRUE(save(*archive, 3, 0, 0).ok());
  ASSERT_TRUE(save(*archive, 4, 0, 0).ok());
  const auto uses = archive->by_use();
  ASSERT_EQ(uses.size(), 3u);
  EXPECT_EQ(uses[0].sequence, 0);
  EXPECT_EQ(uses[1].sequence, 0);
  EXPECT_EQ(uses[2].key, SomeColumn(1).key);
  EXPECT_EQ(uses[2].sequence, -1) << "the last of the process before";
}

TEST_F(PrefixArchiveTest, FewerSlotsKeepWhatLiesInThem) {
  leave(4);
  EXPECT_EQ(open(2)->stats().columns, 2);
  EXPECT_EQ(std::filesystem::file_size(slots()), 2 * 4096u);
  EXPECT_EQ(open(8)->stats().columns, 2);
}

// A process ends at each step of writing a second column: the first column is whole, and the second
// is whole or not there.
TEST_F(PrefixArchiveTest, AProcessThatDiesAnywhereLeavesWholeColumns) {
  using Step = PrefixArchive::Step;
  const std::vector<Step> steps = {Step::kSlotTaken,   Step::kPageWritten,  Step::kPageWritten,
                                   Step::kPageWritten, Step::kTableWritten, Step::kRecordWritten};
  for (size_t last = 0; last < steps.size(); ++last) {
    for (const bool into_used_slot : {false, true}) {
      std::filesystem::remove(index());
      std::filesystem::remove(slots());
      const int64_t num_slots = into_used_slot ? 2 : 8;
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        const auto archive = open(num_slots);
        if (!save(*archive, 1, 0, 2).ok()) _exit(2);
        if (into_used_slot && !save(*archive, 3, 0, 1).ok()) _exit(2);
        size_t seen = 0;
        archive->set_step_hook([&](Step step) {
          if (step != Step::kFileGrows && seen++ == last) _exit(3);
        });
        _exit(save(*archive, 2, 1, 2).ok() ? 4 : 5);
      }
      int status = 0;
      waitpid(child, &status, 0);
      ASSERT_EQ(WEXITSTATUS(status), 3) << last;
      const auto archive = open(num_slots);
      EXPECT_EQ(load(*archive, 1), 0) << last;
      const bool whole = steps[last] == Step::kRecordWritten;
      EXPECT_EQ(load(*archive, 2), whole ? std::optional<int64_t>(1) : std::nullopt) << last;
      // The column whose slot it took was removed before anything was written over it.
      EXPECT_EQ(archive->contains(SomeColumn(3).key), into_used_slot && last == 0) << last;
      EXPECT_EQ(archive->stats().damaged, 0) << "cleared records leave nothing to find damaged";
      // The slot that it was writing when it died can be used.
      ASSERT_TRUE(save(*archive, 4, 0, 1).ok());
      EXPECT_EQ(load(*archive, 4), 0);
    }
  }
}

TEST_F(PrefixArchiveTest, AnIndexCutOffAnywhereLosesColumnsAndNothingElse) {
  leave(2);
  const std::string whole = content(index());
  const std::string pages = content(slots());
  ASSERT_EQ(whole.size(), 4096u + 2 * kArchiveRecordBytes);
  for (size_t length = 0; length <= whole.size(); ++length) {
    // The middle of the header is zeros, and its checksum covers it, so every 64th byte is enough.
    if (length > 128 && length < 4032 && length % 64 != 0) continue;
    directory_.write("kept.index", whole.substr(0, length));
    directory_.write("kept.slots", pages);
    const auto archive = open();
    const auto expected =
        length < 4096 ? 0 : (static_cast<int64_t>(length) - 4096) / kArchiveRecordBytes;
    ASSERT_EQ(archive->stats().columns, expected) << length;
    EXPECT_EQ(load(*archive, 1).has_value(), expected > 0) << length;
  }
}

TEST_F(PrefixArchiveTest, AFlippedByteOfTheIndexLosesWhatItIsOf) {
  leave(2);
  const std::string whole = content(index());
  const std::string pages = content(slots());
  for (size_t at = 0; at < whole.size(); ++at) {
    if (at > 128 && at < 4032 ? at % 64 != 0 : at % 3 != 0) continue;
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    directory_.write("kept.index", damaged);
    directory_.write("kept.slots", pages);
    const auto archive = open();
    const size_t in_record = (at - 4096) % kArchiveRecordBytes;
    const bool unused = at >= 4096 && in_record >= 64;
    const int64_t expected = at < 4096 ? 0 : unused ? 2 : 1;
    ASSERT_EQ(archive->stats().columns, expected) << at;
    // load() itself fails the test if bytes differ.
    EXPECT_EQ(load(*archive, 1).has_value() + load(*archive, 2).has_value(), expected) << at;
  }
}

TEST_F(PrefixArchiveTest, SlotsCutOffAnywhereLoseColumnsAndNothingElse) {
  leave(2);
  const std::string records = content(index());
  const std::string whole = content(slots());
  for (size_t length = 0; length <= whole.size(); length += 613) {
    directory_.write("kept.index", records);
    directory_.write("kept.slots", whole.substr(0, length));
    const auto archive = open();
    ASSERT_EQ(archive->stats().columns, static_cast<int64_t>(length) / 4096) << length;
    EXPECT_EQ(load(*archive, 1).has_value(), length >= 4096);
  }
}

TEST_F(PrefixArchiveTest, AFlippedByteOfASlotIsFoundAndTheColumnForgottenForGood) {
  leave(1);
  const std::string records = content(index());
  const std::string whole = content(slots());
  for (size_t at = 0; at < whole.size(); at += 131) {
    directory_.write("kept.index", records);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    directory_.write("kept.slots", damaged);
    const bool unused = static_cast<int64_t>(at) >= kLayout.table_at() + kLayout.table_bytes();
    {
      const auto archive = open();
      EXPECT_EQ(load(*archive, 1).has_value(), unused) << at;
      EXPECT_EQ(archive->stats().damaged, unused ? 0 : 1) << at;
      EXPECT_EQ(archive->contains(SomeColumn(1).key), unused);
    }
    EXPECT_EQ(open()->stats().columns, unused ? 1 : 0) << at;
  }
}

TEST_F(PrefixArchiveTest, SlotsInOtherPlacesAreNotMistakenForOneAnother) {
  leave(2);
  const std::string whole = content(slots());
  directory_.write("kept.slots", whole.substr(4096) + whole.substr(0, 4096));
  const std::string records = content(index());
  {
    const auto archive = open();
    EXPECT_EQ(load(*archive, 1), std::nullopt);
    EXPECT_EQ(load(*archive, 2), std::nullopt);
  }
  directory_.write("kept.slots", whole);
  directory_.write("kept.index", records.substr(0, 4096) + records.substr(4096 + 128) +
                                     records.substr(4096, 128));
  EXPECT_EQ(open()->stats().columns, 0);
}

TEST_F(PrefixArchiveTest, FilesOfAnotherIdentityAreEmptied) {
  leave(2);
  auto of_another = options();
  of_another.identity = "model b";
  EXPECT_EQ((*PrefixArchive::open(of_another, kLayout))->stats().columns, 0);
  EXPECT_EQ(std::filesystem::file_size(slots()), 0u);
  EXPECT_EQ(open()->stats().columns, 0);
}

TEST_F(PrefixArchiveTest, FilesOfAnotherVersionAreEmptied) {
  leave(2);
  std::string index_bytes = content(index());
  index_bytes[8] = static_cast<char>(kArchiveVersion + 1);
  directory_.write("kept.index", index_bytes);
  EXPECT_EQ(open()->stats().columns, 0);
}

TEST_F(PrefixArchiveTest, AnArchiveIsOneProcessesAtATime) {
  auto first = open();
  const auto second = PrefixArchive::open(options(), kLayout);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Errc::kUnavailable);
  ASSERT_TRUE(save(*first, 1, 0).ok());
  first.reset();
  EXPECT_EQ(open()->stats().columns, 1);
}

TEST_F(PrefixArchiveTest, FilesThatCannotBeHadAreAnErrorAndStayAsTheyAre) {
  std::filesystem::create_directory(index());
  EXPECT_EQ(PrefixArchive::open(options(), kLayout).error().code, Errc::kIo);
  std::filesystem::remove(index());
  const auto target = directory_.write("target", "of somebody else");
  std::filesystem::create_symlink(target, index());
  EXPECT_EQ(PrefixArchive::open(options(), kLayout).error().code, Errc::kIo);
  EXPECT_EQ(content(target), "of somebody else");
  std::filesystem::remove(index());
  ASSERT_EQ(mkfifo(index().c_str(), 0600), 0);
  EXPECT_FALSE(PrefixArchive::open(options(), kLayout).ok());
  auto below_a_file = options();
  below_a_file.directory = target + "/below";
  EXPECT_EQ(PrefixArchive::open(below_a_file, kLayout).error().code, Errc::kIo);
}

TEST_F(PrefixArchiveTest, FilesOfAnotherUserAreAnErrorAndStayAsTheyAre) {
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  leave(1);
  ASSERT_EQ(chown(index().c_str(), 12345, 12345), 0);
  const auto archive = PrefixArchive::open(options(), kLayout);
  ASSERT_FALSE(archive.ok());
  EXPECT_EQ(archive.error().code, Errc::kDenied);
  EXPECT_THAT(archive.error().message, HasSubstr("belongs to user 12345"));
  ASSERT_EQ(chown(index().c_str(), 0, 0), 0);
  EXPECT_EQ(open()->stats().columns, 1);
}

TEST_F(PrefixArchiveTest, NobodyElseMayReadWhatPromptsWereComputedFrom) {
  leave(1);
  for (const auto& path : {index(), slots()}) {
    EXPECT_EQ(std::filesystem::status(path).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
}

// If writing a column fails in the middle, the other columns stay and its slot can be used.
TEST_F(PrefixArchiveTest, APageThatCannotBeHadEndsItsColumnAlone) {
  const auto archive = open(2);
  ASSERT_TRUE(save(*archive, 1, 0).ok());
  const SomeColumn column(2);
  const auto failed = archive->save(
      {.key = column.key, .page = 1, .digests = column.digests, .checksums = column.checksums},
      [&](int64_t row) -> Result<std::span<const std::byte>> {
        if (row == 1) return Error(Errc::kCorrupt, "no page");
        return std::span<const std::byte>(column.pages[static_cast<size_t>(row)]);
      });
  EXPECT_EQ(failed.error().code, Errc::kCorrupt);
  EXPECT_THAT(keys_by_use(*archive), ElementsAre(SomeColumn(1).key));
  ASSERT_TRUE(save(*archive, 3, 1).ok());
  EXPECT_EQ(load(*archive, 3), 1);
  EXPECT_EQ(load(*archive, 1), 0);
}

// A disk may be slow or hang, and the store asks under its own lock.
TEST_F(PrefixArchiveTest, SaysWhatIsThereWhileTheFileGrows) {
  const auto archive = open();
  ASSERT_TRUE(save(*archive, 1, 0).ok());
  bool grew = false;
  archive->set_step_hook([&](PrefixArchive::Step step) {
    if (step != PrefixArchive::Step::kFileGrows) return;
    grew = true;
    EXPECT_TRUE(archive->contains(SomeColumn(1).key));
    EXPECT_EQ(archive->stats().columns, 1);
    EXPECT_EQ(load(*archive, 1), 0);
  });
  ASSERT_TRUE(save(*archive, 2, 1).ok());
  EXPECT_TRUE(grew);
  EXPECT_EQ(load(*archive, 2), 1);
}

// The loading side has no room; the column stays valid.
TEST_F(PrefixArchiveTest, AnErrorOfWhoLoadsIsNotTheColumns) {
  const auto archive = open();
  ASSERT_TRUE(save(*archive, 1, 0).ok());
  const auto loaded = archive->load(
      SomeColumn(1).key,
      [](const PrefixArchive::Table&) { return error(Errc::kExhausted, "no room"); },
      [](int64_t, std::span<const std::byte>) -> Result<void> { return {}; });
  EXPECT_EQ(loaded.error().code, Errc::kExhausted);
  EXPECT_EQ(load(*archive, 1), 0);
}

}  // namespace
}  // namespace millrace::kvstore
