// SPDX-License-Identifier: Apache-2.0
#include "coordinator/access/token_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

const std::string kA(64, 'a');
const std::string kB(64, 'b');

std::string refusal(const std::string& text) {
  const auto tokens = parse_token_file(text);
  return tokens.ok() ? "" : tokens.error().message;
}

TEST(TokenFile, ALineIsANameADigestAndScopes) {
  const auto tokens = parse_token_file("# comment\n\n  router\t" + std::string(64, 'A') +
                                       " prefill \r\nops " + kB + " admin");
  ASSERT_TRUE(tokens.ok()) << tokens.error().message;
  ASSERT_EQ(tokens->size(), 2u);
  EXPECT_EQ((*tokens)[0].sha256, kA);
  EXPECT_EQ((*tokens)[0].caller.name, "router");
  EXPECT_EQ((*tokens)[0].caller.scope, Scope::kPrefill);
  EXPECT_EQ((*tokens)[0].caller.quota, Quota{});
  EXPECT_EQ((*tokens)[1].caller.scope, Scope::kAdmin);
}

TEST(TokenFile, OfSeveralScopesTheMostCounts) {
  EXPECT_EQ(parse_token_file("a " + kA + " read")->front().caller.scope, Scope::kRead);
  EXPECT_EQ(parse_token_file("a " + kA + " prefill,read")->front().caller.scope, Scope::kPrefill);
}

TEST(TokenFile, TokensOfOneNameShareTheQuota) {
  const auto tokens = parse_token_file("a " + kA + " read\na " + kB +
                                       " prefill tokens-per-minute=3000000000 requests=2\n");
  ASSERT_TRUE(tokens.ok()) << tokens.error().message;
  for (const Token& token : *tokens) {
    EXPECT_EQ(token.caller.quota, (Quota{.tokens_per_minute = 3000000000, .requests_at_once = 2}));
  }
  EXPECT_EQ(refusal("a " + kA + " read requests=1\na " + kB + " read requests=2"),
            "line 2: another line gives 'a' another quota");
}

TEST(TokenFile, AWrongLineIsTold) {
  EXPECT_EQ(refusal("\na b"), "line 2: a line has a name, a SHA-256 and scopes; here are 2 words");
  EXPECT_EQ(refusal("a/b " + kA + " read"),
            "line 1: the name \"a/b\" is not 1 to 64 letters, digits and '._-'");
  EXPECT_EQ(refusal(std::string(65, 'n') + " " + kA + " read").rfind("line 1: the name", 0), 0u);
  EXPECT_EQ(refusal("a " + kA + " read,write"),
            "line 1: the scope \"write\" is not read, prefill or admin");
  EXPECT_EQ(refusal("a " + kA + " read,"), "line 1: the scope \"\" is not read, prefill or admin");
  EXPECT_EQ(refusal("a " + kA + " read request=3"),
            "line 1: \"request=3\" is not tokens-per-minute=N or requests=N");
  for (const char* value : {"0", "-1", "3x", "", "2147483648"}) {
    EXPECT_EQ(refusal(fmt::format("a {} read requests={}", kA, value)),
              fmt::format("line 1: \"{}\" is not a number from 1 to 2147483647", value));
  }
  EXPECT_EQ(refusal("a " + kA + " read\nb " + kA + " read"),
            "line 2: the same SHA-256 is on a line above");
}

TEST(TokenFile, WhatMayBeATokenItselfIsNotQuoted) {
  EXPECT_EQ(
      refusal("a secret read"),
      "line 1: the second word has 6 characters and is not a SHA-256, which has 64 hex digits");
  EXPECT_EQ(refusal("a " + std::string(64, 'g') + " read").find("ggg"), std::string::npos);
}

TEST(TokenFile, HasALimit) {
  std::string text;
  for (size_t i = 0; i < kMaxTokens; ++i) text += fmt::format("a {:064x} read\n", i);
  EXPECT_EQ(refusal(text), "");
  EXPECT_EQ(refusal(text + "a " + kA + " read"), "line 4097: more than 4096 tokens");
}

}  // namespace
}  // namespace millrace::coordinator
