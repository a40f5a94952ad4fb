// SPDX-License-Identifier: Apache-2.0
#include "common/content/page_keys.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "common/content/canonical_cbor.h"

namespace millrace {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

// RFC 8949, appendix A.
TEST(CanonicalCbor, WritesNumbersInTheirShortestForm) {
  const auto one = [](int64_t number) {
    CanonicalCbor cbor;
    cbor.add(number);
    return hex(cbor.bytes());
  };
  EXPECT_EQ(one(0), "00");
  EXPECT_EQ(one(23), "17");
  EXPECT_EQ(one(24), "1818");
  EXPECT_EQ(one(255), "18ff");
  EXPECT_EQ(one(1000), "1903e8");
  EXPECT_EQ(one(65536), "1a00010000");
  EXPECT_EQ(one(1000000), "1a000f4240");
  EXPECT_EQ(one(1000000000000), "1b000000e8d4a51000");
  EXPECT_EQ(one(-1), "20");
  EXPECT_EQ(one(-1000), "3903e7");
}

TEST(CanonicalCbor, WritesTextBytesArraysAndNull) {
  CanonicalCbor cbor;
  cbor.begin_array(3);
  cbor.add(std::string_view("IETF"));
  const std::byte bytes[] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  cbor.add(std::span(bytes));
  cbor.add_null();
  EXPECT_EQ(hex(cbor.bytes()),
            "836449455446"
            "4401020304"
            "f6");
}

std::vector<int32_t> tokens(int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 1000);
  return ids;
}

const PageOrigin kOrigin = {.model = "0123456789abcdef",
                            .dtype = "bfloat16",
                            .long_rope = false,
                            .plan = "2x8 16*dense;",
                            .salt = "0:"};

// Computed in Python: hashlib.sha256 of the lists in page_keys.h, written as CBOR by a few lines of
// its own.
TEST(PageKeys, AreWhatTheHeaderSays) {
  const auto keys = page_keys(tokens(200), 2, kOrigin);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(hex(keys[0]), "d280de9c404ead3e2dc5c5511cff257a38ee0ab582ec753852874903592d13ae");
  EXPECT_EQ(hex(keys[1]), "d50758f1082cb1c490859f90bacbd1e3b3cd75ceb27e82c76771b0f229734721");
}

TEST(PageKeys, FollowEverythingBeforeThem) {
  const auto keys = page_keys(tokens(320), 5, kOrigin);
  auto changed = tokens(320);
  changed[130] += 1;
  const auto others = page_keys(changed, 5, kOrigin);
  for (size_t page = 0; page < 5; ++page) EXPECT_EQ(keys[page] == others[page], page < 2) << page;
  // Later tokens do not matter.
  EXPECT_EQ(page_keys(tokens(130), 2, kOrigin)[1], keys[1]);
}

TEST(PageKeys, DifferByAllThatBytesFollowFromAndByTheTenant) {
  std::set<PageContentKey> first, second;
  const auto add = [&](const PageOrigin& origin) {
    const auto keys = page_keys(tokens(128), 2, origin);
    first.insert(keys[0]);
    second.insert(keys[1]);
  };
  add(kOrigin);
  PageOrigin other = kOrigin;
  other.model = "0123456789abcdee";
  add(other);
  other = kOrigin;
  other.dtype = "float16";
  add(other);
  other = kOrigin;
  other.long_rope = true;
  add(other);
  other = kOrigin;
  other.plan = "2x8 16*adaptive:0.2,0.8,11;";
  add(other);
  other = kOrigin;
  other.salt = "5:alice";
  add(other);
  EXPECT_EQ(first.size(), 6u);
  EXPECT_EQ(second.size(), 6u);
}

}  // namespace
}  // namespace millrace
