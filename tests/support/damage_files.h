// SPDX-License-Identifier: Apache-2.0
// A failing disk, for tests that read data back from one.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::test {

// Damages all bytes of the files in `directory` that this process has open. They are unlinked, so
// they are found by their descriptors.
inline void damage_open_files(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (gone || target.string().find(directory) == std::string::npos) continue;
    const int file = std::stoi(entry.path().filename().string());
    struct stat about = {};
    ASSERT_EQ(::fstat(file, &about), 0);
    if (!S_ISREG(about.st_mode)) continue;
    const std::vector<std::byte> zeros(static_cast<size_t>(about.st_size));
    ASSERT_EQ(::pwrite(file, zeros.data(), zeros.size(), 0), std::ssize(zeros));
  }
}

}  // namespace millrace::test
