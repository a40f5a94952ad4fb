// SPDX-License-Identifier: Apache-2.0
#include "common/system/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace millrace {
namespace {

class CgroupMemoryTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.file(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::optional<int64_t> free_bytes(const std::string& groups) {
    write("groups", groups);
    return cgroup_free_bytes({.groups = directory_.file("groups"), .root = directory_.file("fs")});
  }

  test::TempDirectory directory_;
};

TEST_F(CgroupMemoryTest, AContainersLimitLessWhatIsUsedAndCannotBeTakenBack) {
  write("fs/memory.max", "1000000\n");
  write("fs/memory.current", "600000\n");
  write("fs/memory.stat", "anon 300000\nactive_file 100000\ninactive_file 200000\n");
  EXPECT_EQ(free_bytes("0::/\n"), 600'000);
}

TEST_F(CgroupMemoryTest, TheGroupWithLeastLeftOnTheWayUpCounts) {
  write("fs/pods/memory.max", "5000");
  write("fs/pods/memory.current", "4900");
  write("fs/pods/a/memory.max", "1000");
  write("fs/pods/a/memory.current", "10");
  write("fs/pods/a/b/memory.max", "max");
  write("fs/pods/a/b/memory.current", "10");
  EXPECT_EQ(free_bytes("0::/pods/a/b\n"), 100);
}

TEST_F(CgroupMemoryTest, OfVersionOneTheMemoryController) {
  write("fs/memory/memory.limit_in_bytes", "9223372036854771712");
  write("fs/memory/memory.usage_in_bytes", "70000");
  write("fs/memory/docker/memory.limit_in_bytes", "50000");
  write("fs/memory/docker/memory.usage_in_bytes", "40000");
  write("fs/memory/docker/memory.stat", "inactive_file 1\ntotal_inactive_file 15000\n");
  EXPECT_EQ(free_bytes("9:name=systemd:/\n4:hugetlb,memory:/docker\n0::/\n"), 25'000);
}

TEST_F(CgroupMemoryTest, AHostsPathThatTheContainerDoesNotSeeIsItsRoot) {
  write("fs/memory/memory.limit_in_bytes", "50000");
  write("fs/memory/memory.usage_in_bytes", "20000");
  EXPECT_EQ(free_bytes("4:memory:/docker/0123\n"), 30'000);
}

TEST_F(CgroupMemoryTest, MoreUsedThanTheLimitLeavesNone) {
  write("fs/memory.max", "1000");
  write("fs/memory.current", "1500");
  EXPECT_EQ(free_bytes("0::/\n"), 0);
}

TEST_F(CgroupMemoryTest, NoLimitIsNone) {
  write("fs/memory.max", "max\n");
  write("fs/memory.current", "1500");
  EXPECT_EQ(free_bytes("0::/\n3:cpu:/x\nno line\n"), std::nullopt);
  EXPECT_EQ(cgroup_free_bytes({.groups = directory_.file("absent")}), std::nullopt);
}

}  // namespace
}  // namespace millrace
