// SPDX-License-Identifier: Apache-2.0
// A directory for one test. It and everything in it are removed at the end of the scope.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "common/check.h"

namespace millrace::test {

class TempDirectory {
 public:
  TempDirectory() {
    std::string name = ::testing::TempDir() + "millrace-XXXXXX";
    MR_CHECK(::mkdtemp(name.data()) != nullptr, "no directory {}", name);
    path_ = name;
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

  // Writes a file into it and returns the file's path.
  std::string write(std::string_view name, std::string_view content) const {
    std::ofstream(file(name), std::ios::binary) << content;
    return file(name);
  }

 private:
  std::string path_;
};

}  // namespace millrace::test
