// SPDX-License-Identifier: Apache-2.0
// What is appended to a file of records can be read again, whatever happened to the file.
#include "common/system/record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temp_directory.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RecordFileTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("records"); }
  RecordFile open() const { return std::move(*RecordFile::open(path())); }
  void append(const std::vector<std::string>& bodies) const {
    ASSERT_TRUE(open().append(bodies).ok());
  }
  std::vector<std::string> read(int64_t most_bytes = 1 << 20) const {
    std::vector<std::string> bodies;
    const auto read =
        open().read(most_bytes, [&bodies](std::string_view body) { bodies.emplace_back(body); });
    EXPECT_TRUE(read.ok()) << read.error().to_string();
    return bodies;
  }

  const test::TempDirectory directory_;
};

TEST_F(RecordFileTest, RecordsAreReadInTheOrderInWhichTheyWereAppended) {
  EXPECT_THAT(read(), IsEmpty());
  append({"one", std::string("t\0o", 3)});
  append({"three"});
  EXPECT_THAT(read(), ElementsAre("one", std::string("t\0o", 3), "three"));
}

TEST_F(RecordFileTest, ItIsReadableByItsUserAlone) {
  append({"secret"});
  struct stat about {};
  ASSERT_EQ(stat(path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600U);
}

TEST_F(RecordFileTest, OneThatIsCutOffDoesNotCount) {
  append({"first"});
  const auto first_bytes = std::filesystem::file_size(path());
  append({"second"});
  for (auto length = std::filesystem::file_size(path()); length-- > 0;) {
    std::filesystem::resize_file(path(), length);
    EXPECT_EQ(read().size(), length >= first_bytes ? 1U : 0U) << length;
  }
}

TEST_F(RecordFileTest, AFlippedByteCostsItsRecordAndNeverChangesOne) {
  const std::vector<std::string> written = {"first", "second", "third"};
  append(written);
  std::ifstream file(path(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x81);
    directory_.write("records", damaged);
    const auto left = read();
    EXPECT_LT(left.size(), written.size()) << at;
    EXPECT_THAT(written, ::testing::IsSupersetOf(left)) << at;
  }
  // Damages a body, after 12 bytes of its head: the other records still count.
  std::string damaged = whole;
  damaged[12] = 'x';
  directory_.write("records", damaged);
  EXPECT_THAT(read(), ElementsAre("second", "third"));
}

TEST_F(RecordFileTest, NothingIsReadOfAFileThatIsTooLong) {
  append({"one"});
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path()));
  EXPECT_THAT(read(bytes), ElementsAre("one"));
  EXPECT_THAT(read(bytes - 1), IsEmpty());
}

TEST_F(RecordFileTest, ReplacedItHasNothingElse) {
  auto file = open();
  ASSERT_TRUE(file.append(std::vector<std::string>{"one", "two"}).ok());
  ASSERT_TRUE(file.replace(std::vector<std::string>{"three"}).ok());
  EXPECT_EQ(file.bytes_written(), 12 + 5);
  ASSERT_TRUE(file.append(std::vector<std::string>{"four"}).ok());
  EXPECT_THAT(read(), ElementsAre("three", "four"));
  EXPECT_FALSE(std::filesystem::exists(path() + ".new"));
}

TEST_F(RecordFileTest, AFileThatCannotBeHadIsNamed) {
  const auto opened = RecordFile::open(directory_.file("nowhere/records"));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Errc::kIo);
  EXPECT_THAT(opened.error().message, ::testing::HasSubstr("nowhere/records"));
}

}  // namespace
}  // namespace millrace
