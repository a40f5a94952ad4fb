// SPDX-License-Identifier: Apache-2.0
#include "common/text/read_json.h"

#include <gtest/gtest.h>

#include "common/text/utf8.h"

namespace millrace {
namespace {

using namespace std::string_literals;

std::string mistake(const std::string& text) {
  const auto value = read_json(text);
  return value.ok() ? "none" : value.error().message;
}

TEST(JsonMistake, ThereIsNoneInJson) {
  EXPECT_EQ(mistake(R"({"a":[1,"\ud83d\ude00",null]})"), "none");
  EXPECT_EQ(mistake(" 1 \n"), "none");
}

TEST(JsonMistake, AByteOrderMarkIsNamed) {
  EXPECT_EQ(mistake("\xef\xbb\xbf{}"),
            "byte 0: a byte order mark of UTF-8; JSON is UTF-8 without one");
  EXPECT_EQ(mistake("\xff\xfe{\0}\0"s),
            "byte 0: a byte order mark of UTF-16; JSON is UTF-8 without one");
}

TEST(JsonMistake, HalfOfASurrogatePairIsNamed) {
  for (const char* text : {R"(["\ud800"])", R"(["\udc00"])", R"(["\ud800x"])", R"(["\ud800\n"])",
                           R"(["\ud800\ud800"])", R"({"\udfff":1})"}) {
    EXPECT_NE(mistake(text).find("half of a surrogate pair"), std::string::npos)
        << text << ": " << mistake(text);
  }
  // A backslash and letters.
  EXPECT_EQ(mistake(R"(["\\ud800"])"), "none");
  EXPECT_EQ(mistake("[\"\\\\ud800\x01\"]"), "byte 9: syntax error");
}

TEST(JsonMistake, BytesThatAreNoCharacterAreNamed) {
  EXPECT_EQ(mistake("[\"a\xff\"]"), "byte 3: not UTF-8");
  EXPECT_EQ(mistake("[\"\xed\xa0\x80\"]"), "byte 2: not UTF-8");  // half of a surrogate pair
}

TEST(JsonMistake, WhatIsNoNumberIsNamed) {
  for (const char* text : {"[NaN]", "[-Infinity]", "[Infinity]", R"({"a": NaN})", "[+inf]"}) {
    EXPECT_NE(mistake(text).find("NaN and Infinity are no numbers in JSON"), std::string::npos)
        << text << ": " << mistake(text);
  }
}

TEST(JsonMistake, OthersAreInTheParsersWords) {
  EXPECT_EQ(mistake("[1,]"), "byte 3: syntax error");
  EXPECT_EQ(mistake("{} x"), "byte 3: extra data");
  EXPECT_EQ(mistake("[[[1]]]").substr(0, 4), "none");
  EXPECT_FALSE(read_json("[[[1]]]", 2).ok());
}

TEST(ByteOrderMark, IsOfOneEncoding) {
  EXPECT_EQ(byte_order_mark("\xef\xbb\xbf{}"), "UTF-8");
  EXPECT_EQ(byte_order_mark("\xff\xfe{\0"s), "UTF-16");
  EXPECT_EQ(byte_order_mark("\xfe\xff\0{"s), "UTF-16");
  EXPECT_EQ(byte_order_mark("\xff\xfe\0\0{\0\0\0"s), "UTF-32");
  EXPECT_EQ(byte_order_mark("\0\0\xfe\xff\0\0\0{"s), "UTF-32");
  for (const auto& text : {""s, "{}"s, "\xef\xbb"s, "\xff"s}) {
    EXPECT_EQ(byte_order_mark(text), "") << text;
  }
}

}  // namespace
}  // namespace millrace
