// SPDX-License-Identifier: Apache-2.0
#include "common/system/output_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace millrace {
namespace {

class OutputFileTest : public ::testing::Test {
 protected:
  OutputFileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "millrace-output-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    path_ = directory_ + "/result.json";
  }
  ~OutputFileTest() override { std::filesystem::remove_all(directory_); }

  std::string content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string directory_;
  std::string path_;
};

TEST_F(OutputFileTest, HoldsWhatWasWrittenInOrder) {
  auto file = OutputFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->write("one ").ok());
  EXPECT_TRUE(file->write("two").ok());
  EXPECT_EQ(content(), "one two");
}

TEST_F(OutputFileTest, WhatWasThereStaysUntilTheFirstWrite) {
  std::ofstream(path_) << "an earlier and longer result";
  {
    auto file = OutputFile::open(path_);
    ASSERT_TRUE(file.ok());
  }
  EXPECT_EQ(content(), "an earlier and longer result");
  auto file = OutputFile::open(path_);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->write("a later one").ok());
  EXPECT_EQ(content(), "a later one");
}

TEST_F(OutputFileTest, NothingIsLeftOfAFileThatNobodyWroteTo) {
  {
    auto file = OutputFile::open(path_);
    ASSERT_TRUE(file.ok());
    const OutputFile moved = *std::move(file);
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(OutputFileTest, APathThatCannotBeWrittenIsNamed) {
  for (const std::string& path : {directory_, directory_ + "/missing/result.json"}) {
    const auto file = OutputFile::open(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.error().code, Errc::kIo);
    EXPECT_EQ(file.error().message.rfind("cannot write " + path + ": ", 0), 0u);
  }
}

TEST_F(OutputFileTest, ADiskThatIsFullIsAnError) {
  auto file = OutputFile::open("/dev/full");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->write("x").error().code, Errc::kIo);
}

}  // namespace
}  // namespace millrace
