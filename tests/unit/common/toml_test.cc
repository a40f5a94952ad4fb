// SPDX-License-Identifier: Apache-2.0
#include "common/cli/toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// "[table] key: value|value" of each entry.
std::vector<std::string> entries(std::string_view text) {
  const auto parsed = parse_toml(text);
  if (!parsed.ok()) return {parsed.error().message};
  std::vector<std::string> lines;
  for (const auto& entry : *parsed) {
    std::string line = entry.table.empty() ? "" : "[" + entry.table + "] ";
    line += entry.key + ":";
    for (const auto& value : entry.values) line += " " + value + "|";
    lines.push_back(line);
  }
  return lines;
}

// Values as the specification of TOML 1.0 gives them, where it has examples.
TEST(Toml, ReadsStringsNumbersAndTruth) {
  EXPECT_THAT(entries("a = \"I'm a string. \\\"You can quote me\\\". Name\\tJos\\u00E9\""),
              ElementsAre("a: I'm a string. \"You can quote me\". Name\tJosé|"));
  EXPECT_THAT(entries(R"(winpath = 'C:\Users\nodejs')"),
              ElementsAre(R"(winpath: C:\Users\nodejs|)"));
  EXPECT_THAT(entries("a = \"\\U0001F600 #no comment\" # one"), ElementsAre("a: 😀 #no comment|"));
  EXPECT_THAT(entries("a = +99\nb = 1_000\nc = 0xdead_beef\nd = 0o755\ne = 0b11010110\nf = -17"),
              ElementsAre("a: 99|", "b: 1000|", "c: 3735928559|", "d: 493|", "e: 214|", "f: -17|"));
  EXPECT_THAT(
      entries("a = 3.1415\nb = -2E-2\nc = 6.626e-34\nd = 224_617.445\ne = -inf"),
      ElementsAre("a: 3.1415|", "b: -0.02|", "c: 6.626e-34|", "d: 224617.445|", "e: -inf|"));
  EXPECT_THAT(entries("a = true\r\nb=false"), ElementsAre("a: true|", "b: false|"));
  EXPECT_THAT(entries("a = \"\""), ElementsAre("a: |"));
}

TEST(Toml, ReadsTablesArraysAndComments) {
  EXPECT_THAT(
      entries("# a comment\n\n  x = 1 # one\n[ prefill ] # of a command\ny = [ 1, 'b', # c\n"
              "  \"]\",\n]\nz = []\n"),
      ElementsAre("x: 1|", "[prefill] y: 1| b| ]|", "[prefill] z:"));
  EXPECT_THAT(entries(""), ElementsAre());
}

TEST(Toml, ATableMayStandInOneLine) {
  EXPECT_THAT(entries("z = 1\nb = {y = 2}\na.x = 3\n\"w\" = 4\n[c.d]\nv = 5"),
              ElementsAre("z: 1|", "[b] y: 2|", "[a] x: 3|", "w: 4|", "[c.d] v: 5|"));
}

TEST(Toml, AnErrorBeginsWithItsLine) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"a = 1\nb", "2: "},     {"a = tru", "1: "},      {"a = 1 2", "1: "},
      {"\n\na = \"x", "3: "},  {"a = \"x\ny\"", "1: "}, {"a = [1 2]", "1: "},
      {"a = 1\na = 2", "2: "}, {"[t]\n[t]", "2: "},     {"[t", "1: "},
      {"= 1", "1: "},          {"a = \"\\x\"", "1: "},  {"a = \"\\uD800\"", "1: "}};
  for (const auto& [text, line] : wrong) {
    EXPECT_THAT(entries(text), ElementsAre(StartsWith(line))) << text;
  }
}

TEST(Toml, RefusesWhatNoOptionTakes) {
  for (const char* text : {"a = 1979-05-27", "a = [[1]]", "[[a]]", "a = [{b = 1}]"}) {
    EXPECT_THAT(entries(text),
                ElementsAre("1: a: expected a string in quotes, a number, true or false"))
        << text;
  }
}

TEST(Toml, WhatIsWrittenIsRead) {
  for (const std::string& text :
       {std::string("plain"), std::string("a\"b\\c"), std::string("\x01\n\x7f\0x", 6),
        std::string("José # ' ]"), std::string()}) {
    const auto parsed = parse_toml("a = " + toml_string(text));
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_THAT(parsed->front().values, ElementsAre(text));
  }
}

TEST(Toml, KnowsNumbers) {
  for (const char* number : {"0", "-1", "17", "0.5", "1e6", "-2.5e-3", "+1", "1_0", "0x10"}) {
    EXPECT_TRUE(is_toml_number(number)) << number;
  }
  for (const char* text : {"", "x", "007", "1.", "-", "true", "'1'", "[1]", "1\nb = 2"}) {
    EXPECT_FALSE(is_toml_number(text)) << text;
  }
}

}  // namespace
}  // namespace millrace::cli
