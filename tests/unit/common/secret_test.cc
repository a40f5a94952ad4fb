// SPDX-License-Identifier: Apache-2.0
// Ids, which identify, and secrets, which grant access.
#include <gtest/gtest.h>

#include <set>

#include "common/secret.h"

namespace millrace {
namespace {

TEST(SameSecret, IsWhatEqualityIs) {
  EXPECT_TRUE(same_secret("", ""));
  EXPECT_TRUE(same_secret("95be05533f24", "95be05533f24"));
  EXPECT_FALSE(same_secret("95be05533f24", "95be05533f25"));
  EXPECT_FALSE(same_secret("95be05533f24", "85be05533f24"));
  EXPECT_FALSE(same_secret("95be", "95be0"));
  EXPECT_FALSE(same_secret("a", ""));
  EXPECT_FALSE(same_secret("\xff", "\x7f"));
}

TEST(RandomId, Has128BitsInHexadecimal) {
  std::set<std::string> seen;
  std::string bits_seen(32, '\0');
  for (int i = 0; i < 1000; ++i) {
    const std::string id = random_id();
    ASSERT_EQ(id.size(), 32u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    for (size_t at = 0; at < id.size(); ++at) {
      bits_seen[at] |= static_cast<char>(1 << (std::stoi(id.substr(at, 1), nullptr, 16) / 4));
    }
    EXPECT_TRUE(seen.insert(id).second) << id;
  }
  // Every digit takes values from all four quarters, so none is constant.
  EXPECT_EQ(bits_seen, std::string(32, '\x0f'));
}

}  // namespace
}  // namespace millrace
