// SPDX-License-Identifier: Apache-2.0
// The ledger's file on a disk that hangs: a pipe that nobody reads, which takes 64 KiB.
#include "worker/control/ledger_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/temp_directory.h"
#include "worker/control/prefix_ledger.h"

namespace millrace::worker {
namespace {

// About 10 KiB.
LedgerRecord record_of(uint64_t first) {
  LedgerRecord record;
  for (uint64_t key = first; key < first + 256; ++key) record.entries.push_back({key, {}});
  return record;
}

class LedgerWriterTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("ledger"); }
  void make_pipe(const std::string& path) {
    ASSERT_EQ(mkfifo(path.c_str(), S_IRUSR | S_IWUSR), 0);
    pipe_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(pipe_.valid());
  }
  // Reads the pipe until the writer's thread has finished its last record.
  void let_go() {
    std::array<char, 1 << 16> bytes;
    while (::read(pipe_.get(), bytes.data(), bytes.size()) > 0) continue;
  }

  const test::TempDirectory directory_;
  FileDescriptor pipe_;
};

TEST_F(LedgerWriterTest, WritesAllBeforeItEnds) {
  {
    LedgerWriter writer(*LedgerFile::open(path()));
    ASSERT_TRUE(writer.append(record_of(1)));
    ASSERT_TRUE(writer.replace(record_of(1000)));
    ASSERT_TRUE(writer.append(record_of(2000)));
  }
  const auto read = LedgerFile::open(path())->read();
  ASSERT_TRUE(read.ok());
  auto expected = record_of(1000).entries;
  const auto appended = record_of(2000).entries;
  expected.insert(expected.end(), appended.begin(), appended.end());
  EXPECT_EQ(read->entries, expected);
}

TEST_F(LedgerWriterTest, NobodyWaitsForAFileThatHangsAndFewRecordsWait) {
  make_pipe(path());
  size_t num_taken = 0;
  {
    LedgerWriter writer(*LedgerFile::open(path()));
    while (num_taken < 1000 && writer.append(record_of(num_taken))) ++num_taken;
  }  // which leaves the record that hangs
  // What waited, and what the pipe took at once: seven records at most.
  EXPECT_GE(num_taken, LedgerWriter::kMostWaiting);
  EXPECT_LE(num_taken, LedgerWriter::kMostWaiting + 7);
  let_go();
}

TEST_F(LedgerWriterTest, AFileThatCannotBeWrittenIsTold) {
  LedgerWriter writer(*LedgerFile::open(path()));
  ASSERT_EQ(mkdir((path() + ".new").c_str(), S_IRWXU), 0);
  ASSERT_TRUE(writer.replace(record_of(1)));
  std::optional<Error> failure;
  while (!failure) failure = writer.take_failure();
  EXPECT_EQ(failure->code, Errc::kIo);
  EXPECT_FALSE(writer.take_failure());
}

// The whole with which a ledger begins is written to a second file that replaces the first: here
// that file is the pipe.
TEST_F(LedgerWriterTest, PromptsGoOnWhileTheLedgersFileHangs) {
  make_pipe(path() + ".new");
  {
    PrefixLedger ledger;
    ledger.keep_in(*LedgerFile::open(path()), [](std::span<const PageContentKey> pages) {
      return std::vector<bool>(pages.size(), true);
    });
    std::vector<PageContentKey> pages(2048);
    std::vector<int64_t> own(pages.size());
    for (size_t page = 0; page < own.size(); ++page) own[page] = static_cast<int64_t>(page);
    for (uint64_t prompt = 1; prompt <= 100; ++prompt) {
      std::vector<uint64_t> keys;
      for (uint64_t key = 0; key < 256; ++key) keys.push_back(1000 * prompt + key);
      const auto added = ledger.add(
          {.prefix_keys = keys, .page_keys = pages, .own_pages = own, .origin = 1, .tenant = 1});
      ASSERT_EQ(added.added_size(), 256);
      ledger.keep(added);
    }
  }
  let_go();
}

}  // namespace
}  // namespace millrace::worker
