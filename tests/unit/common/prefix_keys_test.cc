// SPDX-License-Identifier: Apache-2.0
#include "common/content/prefix_keys.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace millrace {
namespace {

std::vector<int32_t> counted(size_t num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// By Python's hashlib: sha256(32 zero bytes + struct.pack("<512i", 0, ..., 511)), and so on.
TEST(PrefixKeys, AreAChainOverFullRunsOfTokens) {
  EXPECT_TRUE(prefix_keys(counted(511)).empty());
  const auto keys = prefix_keys(counted(2 * 512 + 100));
  EXPECT_EQ(keys, (std::vector<uint64_t>{0x2302e099349cadb2, 0x65fbbe0eaf42f27f}));
}

TEST(PrefixKeys, DifferFromWhereTokensDoOn) {
  const auto tokens = counted(4 * 512);
  auto others = tokens;
  ++others[2 * 512];
  const auto a = prefix_keys(tokens);
  const auto b = prefix_keys(others);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
  EXPECT_NE(a[3], b[3]);
}

TEST(PrefixKeys, TenantsAreToldApartHoweverTheyCallThemselves) {
  EXPECT_EQ(tenant_key("alice", "salt"), 0xbd605633c095fb6);  // sha256(b"5:alicesalt")
  EXPECT_NE(tenant_key("alice", "salt"), tenant_key("alicesalt", ""));
  EXPECT_NE(tenant_key("alice", "salt"), tenant_key("", "alicesalt"));
}

// sha256 of the CBOR that Python writes of [1, "m", "bfloat16", 0, "2x8 16*dense"].
TEST(PrefixKeys, TheOriginIsAllButTheSalt) {
  const auto key_with = [](const std::string& salt, bool long_rope) {
    return origin_key({.model = "m",
                       .dtype = "bfloat16",
                       .long_rope = long_rope,
                       .plan = "2x8 16*dense",
                       .salt = salt});
  };
  EXPECT_EQ(key_with("a", false), 0x43339795664e4af3);
  EXPECT_EQ(key_with("b", false), 0x43339795664e4af3);
  EXPECT_NE(key_with("a", true), 0x43339795664e4af3);
}

TEST(PrefixKeys, AStoredKeyDependsOnAllThree) {
  EXPECT_EQ(stored_prefix_key(1, 2, 3), 0x6ea43fa50cdbd352);  // the formula, in Python
  std::set<uint64_t> all;
  for (uint64_t key = 0; key < 8; ++key) {
    for (uint64_t origin = 0; origin < 8; ++origin) {
      for (uint64_t tenant = 0; tenant < 8; ++tenant) {
        all.insert(stored_prefix_key(key, origin, tenant));
      }
    }
  }
  EXPECT_EQ(all.size(), 512u);
}

}  // namespace
}  // namespace millrace
