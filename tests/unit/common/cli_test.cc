// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"

namespace millrace::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

enum class Size : uint8_t { kSmall, kLarge };

class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.add_option("--file", file_, "what to read")->type_name("FILE")->required();
    app_.add_option("--count", count_, "how often")->check(CLI::Range(1, 9))->capture_default_str();
    app_.add_option("--server", server_, "whom to ask")->option_text("HOST:PORT");
    add_choice<Size>(app_, "--size", size_, {{"small", Size::kSmall}, {"large", Size::kLarge}},
                     "of a cup");
  }

  CLI::App app_{"Pours."};
  std::string file_;
  std::string server_;
  int count_ = 3;
  Size size_ = Size::kLarge;
};

std::string complaint(const CLI::Validator& check, const std::string& text) {
  return check(text);
}

TEST(NumberRange, AnErrorSaysWhatTheNumberMayBe) {
  EXPECT_EQ(complaint(number_range(0), "-1"), "must be a whole number, 0 or more; not '-1'");
  EXPECT_EQ(complaint(number_range(1, 9), "10"), "must be a whole number from 1 to 9; not '10'");
  EXPECT_EQ(complaint(number_range(1, 9), "x"), "must be a whole number from 1 to 9; not 'x'");
  EXPECT_EQ(complaint(number_range(0.0, 1.0), "nan"), "must be a number from 0 to 1; not 'nan'");
  EXPECT_EQ(complaint(positive_seconds(), "0"), "must be a number from 0.001 to 31536000; not '0'");
  EXPECT_EQ(complaint(number_range(1, 9), "9"), "");
  EXPECT_EQ(complaint(positive_seconds(), "0.5"), "");
}

TEST(NumberRange, LeavesTheHelpAsItIs) {
  CLI::App app("Pours.");
  app.formatter(std::make_shared<HelpFormatter>());
  int count = 3;
  app.add_option("--count", count, "how often")->check(number_range(1, 9))->capture_default_str();
  EXPECT_THAT(app.help(), HasSubstr("  --count N                       how often (default 3)\n"));
}

TEST_F(CliTest, AWrongCommandLineEndsWithStatusTwoAndHelpWithNone) {
  const auto status = [&](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "pour");
    return parse(app_, static_cast<int>(arguments.size()), arguments.data());
  };
  EXPECT_EQ(status({"--file", "x"}), std::nullopt);
  EXPECT_EQ(status({"--file", "x", "--count", "10"}), 2);
  EXPECT_EQ(status({"--no-such-option"}), 2);
  EXPECT_EQ(status({}), 2);
  EXPECT_EQ(status({"--help"}), 0);
}

TEST_F(CliTest, HelpNamesKindMeaningAndDefault) {
  const std::string help = app_.help();
  EXPECT_THAT(help, HasSubstr("  --file FILE                     what to read (required)\n"));
  EXPECT_THAT(help, HasSubstr("  --count N                       how often (default 3)\n"));
  EXPECT_THAT(help, HasSubstr("  --server HOST:PORT              whom to ask\n"));
  EXPECT_THAT(help, HasSubstr("  --size small|large              of a cup (default large)\n"));
  EXPECT_THAT(help, Not(HasSubstr(" in [")));
}

TEST_F(CliTest, AWordSetsWhatItStandsFor) {
  app_.parse("--file x --size small");
  EXPECT_EQ(size_, Size::kSmall);
}

TEST_F(CliTest, WithoutTheOptionTheValueStays) {
  app_.parse("--file x");
  EXPECT_EQ(size_, Size::kLarge);
}

TEST_F(CliTest, AnotherWordIsAnErrorThatNamesTheChoices) {
  for (const char* line : {"--file x --size huge", "--file x --size 1"}) {
    try {
      app_.parse(line);
      ADD_FAILURE() << line;
    } catch (const CLI::ValidationError& e) {
      EXPECT_THAT(e.what(), HasSubstr("small,large"));
    }
  }
  EXPECT_EQ(size_, Size::kLarge);
}

}  // namespace
}  // namespace millrace::cli
