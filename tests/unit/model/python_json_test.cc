// SPDX-License-Identifier: Apache-2.0
#include "model/json/python_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <string>

namespace millrace::model {
namespace {

using testing::HasSubstr;

constexpr int kDepth = 8;

std::string read(std::string_view text) {
  const auto value = parse_python_json(text, kDepth);
  return value.ok() ? boost::json::serialize(*value) : value.error().to_string();
}

TEST(PythonJson, WordsForNumbersBecomeStrings) {
  EXPECT_EQ(read("[NaN, Infinity, -Infinity, -1]"), R"(["NaN","Infinity","-Infinity",-1])");
  EXPECT_EQ(read("NaN"), "\"NaN\"");
}

TEST(PythonJson, StringsStayAsTheyAre) {
  for (const std::string text : {R"({"NaN":"-Infinity"})", R"(["a\"NaN","\\",["Infinity"]])",
                                 R"(["\\\\\"NaN\\"])", "[1,2.5E0,true,null,\"\"]"}) {
    EXPECT_EQ(read(text), text);
  }
}

TEST(PythonJson, AByteOrderMarkIsSkipped) {
  EXPECT_EQ(read("\xEF\xBB\xBF{\"a\":1}"), "{\"a\":1}");
  for (const std::string text : {"\xFF\xFE{", "\xFE\xFF{"})
    EXPECT_THAT(read(text), HasSubstr("UTF-8"));
}

// json.dumps("\ud83d") writes "\ud83d".
TEST(PythonJson, HalfOfASurrogatePairIsReplaced) {
  EXPECT_EQ(read(R"(["\ud83d\ude00","\ud83d","\ude00x","\ud83d\u0041","\\ud83d"])"),
            "[\"\U0001F600\",\"\uFFFD\",\"\uFFFDx\",\"\uFFFDA\",\"\\\\ud83d\"]");
}

TEST(PythonJson, WhatPythonRefusesIsRefused) {
  for (const char* text : {"", "nan", "Infinit", "[1, NaN", "\"a", "\"\\", "\"\\u12", "{'a': 1}",
                           "[1] NaN", "+Infinity", "\xEF\xBB\xBF\xEF\xBB\xBF[]"}) {
    EXPECT_FALSE(parse_python_json(text, kDepth).ok()) << text;
  }
}

}  // namespace
}  // namespace millrace::model
