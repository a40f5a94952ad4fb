// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/text_messages.h"

#include <gtest/gtest.h>

#include <numeric>

namespace millrace::tokenizer {
namespace {

TEST(TextMessages, ATextIsSentAsItIs) {
  const Frame request = encode_request(std::string("a\0\"\n", 4), /*add_special_tokens=*/false);
  EXPECT_EQ(request.header, R"({"do":"encode","add_special_tokens":false})");
  EXPECT_EQ(request.body, std::string("a\0\"\n", 4));
}

TEST(TextMessages, IdsAreThoseOfTheReply) {
  const auto ids = encoded_ids({"{}", std::string("\1\0\0\0\0\1\0\0", 8)}, 257);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, (std::vector<int32_t>{1, 256}));
}

TEST(TextMessages, IdsBeyondTheVocabularyAndHalfIdsAreCorrupt) {
  for (const auto& reply :
       {Frame{"{}", std::string("\0\1\0\0", 4)}, Frame{"{}", std::string("\xff\xff\xff\xff", 4)},
        Frame{"{}", "abc"}, Frame{"[]", ""}, Frame{"", ""}}) {
    const auto ids = encoded_ids(reply, 256);
    ASSERT_FALSE(ids.ok()) << reply.header;
    EXPECT_EQ(ids.error().code, Errc::kCorrupt);
  }
}

TEST(TextMessages, AnErrorOfTheTokenizerKeepsItsCode) {
  const auto failed = encoded_ids(
      {R"({"error":{"code":"invalid_argument","message":"the text is not UTF-8"}})", ""}, 9);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Errc::kInvalidArgument);
  EXPECT_EQ(failed.error().message, "the text is not UTF-8");
  const auto unknown = encoded_ids({R"({"error":{"code":"peer_lost","message":"x"}})", ""}, 9);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, Errc::kInternal);
}

TEST(TextMessages, OnlyTheEndOfThePromptIsSentAlong) {
  std::vector<int32_t> prompt(1000);
  std::iota(prompt.begin(), prompt.end(), 0);
  const Frame request = following_request(prompt, {7}, {7, 9});
  EXPECT_EQ(request.header, R"({"do":"follow","token_ids":[7],"listed":[7,9]})");
  ASSERT_EQ(request.body.size(), kContextTokens * sizeof(int32_t));
  EXPECT_EQ(request.body.substr(0, 4), std::string("\xe0\3\0\0", 4));  // 992
  EXPECT_EQ(following_request(std::span(prompt).first(2), {7}, {}).body.size(), 8u);
}

TEST(TextMessages, TheFollowingTextHasItsNames) {
  const auto following = following_text({R"({"text":" a","names":[" a","bytes:\\xe2"]})", ""});
  ASSERT_TRUE(following.ok());
  EXPECT_EQ(following->text, " a");
  EXPECT_EQ(following->names, (std::vector<std::string>{" a", "bytes:\\xe2"}));
  EXPECT_FALSE(following_text({R"({"text":1,"names":[]})", ""}).ok());
  EXPECT_FALSE(following_text({R"({"text":"","names":[1]})", ""}).ok());
}

}  // namespace
}  // namespace millrace::tokenizer
