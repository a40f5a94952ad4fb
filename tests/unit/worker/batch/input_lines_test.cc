// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/input_lines.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_directory.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class InputLinesTest : public ::testing::Test {
 protected:
  std::unique_ptr<InputLines> open(const std::string& path, int64_t max_line_bytes = 100) {
    auto lines = InputLines::open(path, max_line_bytes);
    MR_CHECK(lines.ok(), "{}", lines.error().to_string());
    return std::move(*lines);
  }
  // "number:bytes:text" of all lines of a file.
  std::vector<std::string> lines_of(const std::string& text, int64_t max_line_bytes = 100) {
    const auto input = open(directory_.write("input", text), max_line_bytes);
    std::vector<std::string> lines;
    while (!input->at_end()) {
      const auto line = input->next(ample());
      if (!line.ok() || !line->has_value()) continue;
      lines.push_back(fmt::format("{}:{}:{}", (*line)->number, (*line)->num_bytes, (*line)->text));
    }
    return lines;
  }

  test::TempDirectory directory_;
};

TEST_F(InputLinesTest, ALineEndsAtItsNewlineOrAtTheEnd) {
  EXPECT_THAT(lines_of("one\n\nthree\r\nfour"),
              ElementsAre("1:3:one", "2:0:", "3:6:three\r", "4:4:four"));
  EXPECT_THAT(lines_of("one\n"), ElementsAre("1:3:one"));
  EXPECT_THAT(lines_of(""), ElementsAre());
}

TEST_F(InputLinesTest, ALineOverTheLimitIsCountedAndNotKept) {
  EXPECT_THAT(lines_of("12345\n123456\n1234", 5), ElementsAre("1:5:12345", "2:6:", "3:4:1234"));
}

TEST_F(InputLinesTest, ALineMayBeLongerThanWhatIsReadAtOnce) {
  const std::string text(3'000'000, 'x');
  const auto input = open(directory_.write("input", text + "\n" + text + "\nlast"), 10'000'000);
  for (int i = 0; i < 2; ++i) EXPECT_EQ((*input->next(ample()))->text, text);
  EXPECT_EQ((*input->next(ample()))->text, "last");
}

TEST_F(InputLinesTest, AWriterWhoWaitsInTheMiddleOfALineIsWaitedForUntilTheDeadline) {
  const std::string path = directory_.file("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto input = open(path);
  const auto soon = [] { return Deadline::after(std::chrono::milliseconds(5)); };
  EXPECT_FALSE(input->next(soon())->has_value());  // nobody has opened the other end
  EXPECT_FALSE(input->at_end());
  const int writer = ::open(path.c_str(), O_WRONLY);
  EXPECT_EQ(write(writer, "a li", 4), 4);
  EXPECT_FALSE(input->next(soon())->has_value());
  EXPECT_EQ(write(writer, "ne\nanother", 10), 10);
  EXPECT_EQ((*input->next(ample()))->text, "a line");
  EXPECT_FALSE(input->next(soon())->has_value());
  EXPECT_FALSE(input->at_end());
  close(writer);
  EXPECT_EQ((*input->next(ample()))->text, "another");
  EXPECT_TRUE(input->at_end());
}

TEST_F(InputLinesTest, WhatCannotBeReadIsNamed) {
  const auto absent = InputLines::open(directory_.file("absent"), 100);
  ASSERT_FALSE(absent.ok());
  EXPECT_THAT(absent.error().message, HasSubstr("absent: open: No such file"));
  // It opens, is no directory, and gives EIO at its first byte.
  const auto line = open("/proc/self/mem")->next(ample());
  ASSERT_FALSE(line.ok());
  EXPECT_THAT(line.error().message, HasSubstr("/proc/self/mem: read, line 1: Input/output error"));
}

}  // namespace
}  // namespace millrace::worker
