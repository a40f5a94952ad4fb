// SPDX-License-Identifier: Apache-2.0
#include "common/system/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "tests/support/temp_directory.h"

namespace millrace {
namespace {

using test::TempDirectory;
using testing::HasSubstr;

int64_t sum(const MappedFile& file) {
  return std::accumulate(
      file.bytes().begin(), file.bytes().end(), int64_t{0},
      [](int64_t total, std::byte byte) { return total + std::to_integer<int64_t>(byte); });
}

// Without its guard, reading the pages that are gone would end the process (SIGBUS).
TEST(MappedFile, ThatIsCutShortReadsAsZerosAndSaysSo) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  TempDirectory directory;
  const auto path = directory.write("file", std::string(4 * page, '\x01'));
  const auto file = MappedFile::open(path), other = MappedFile::open(path);
  ASSERT_TRUE(file.ok() && other.ok());
  EXPECT_EQ(sum(*file), static_cast<int64_t>(4 * page));
  std::filesystem::resize_file(path, page);
  EXPECT_FALSE(file->torn());
  EXPECT_EQ(sum(*file), static_cast<int64_t>(page));
  EXPECT_TRUE(file->torn());
  EXPECT_FALSE(other->torn());  // nobody has read it
}

TEST(MappedFile, MayMoveAndIsStillGuarded) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  TempDirectory directory;
  const auto path = directory.write("file", std::string(2 * page, '\x01'));
  auto file = *MappedFile::open(path);
  auto second = *MappedFile::open(directory.write("second", "2"));
  second = std::move(file);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(sum(second), 0);
  EXPECT_TRUE(second.torn());
}

TEST(MappedFile, KnowsWhetherItsFileIsTheSame) {
  TempDirectory directory;
  const auto path = directory.write("file", "abc");
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->unchanged().ok());
  // A new name and mode of the same file.
  std::filesystem::create_hard_link(path, directory.file("link"));
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  EXPECT_TRUE(file->unchanged().ok());
  // Another file of the same contents.
  const auto copy = directory.write("copy", "abc");
  std::filesystem::rename(copy, path);
  const auto changed = file->unchanged();
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(changed.error().code, Errc::kIo);
  EXPECT_THAT(changed.error().message, HasSubstr(path));
}

TEST(MappedFile, KnowsThatItsFileIsWrittenOver) {
  TempDirectory directory;
  const auto path = directory.write("file", "abc");
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  std::fstream(path, std::ios::in | std::ios::out) << "abd";
  // As if it had happened later: the times of a file may be as coarse as the system's clock ticks.
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::milliseconds(1));
  EXPECT_FALSE(file->unchanged().ok());
}

}  // namespace
}  // namespace millrace
