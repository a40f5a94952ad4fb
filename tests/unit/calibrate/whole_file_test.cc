// SPDX-License-Identifier: Apache-2.0
#include "calibrate/whole_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temp_directory.h"

namespace millrace::calibrate {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WholeFile, ReplacesWhatWasThereAndLeavesNothingElse) {
  const test::TempDirectory directory;
  const auto path = directory.write("plan.json", "old");
  ASSERT_TRUE(check_writable(path).ok());
  EXPECT_EQ(text_of(path), "old");
  ASSERT_TRUE(write_whole(path, "new").ok());
  EXPECT_EQ(text_of(path), "new");
  const auto files = std::filesystem::directory_iterator(directory.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(WholeFile, IsRefusedWhereItCannotBe) {
  const test::TempDirectory directory;
  for (const auto& path : {directory.path(), directory.file("none/plan.json")}) {
    for (const auto& done : {check_writable(path), write_whole(path, "text")}) {
      ASSERT_FALSE(done.ok()) << path;
      EXPECT_EQ(done.error().code, Errc::kIo);
      EXPECT_THAT(done.error().message, testing::HasSubstr(path));
    }
  }
}

}  // namespace
}  // namespace millrace::calibrate
