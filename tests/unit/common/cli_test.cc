#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "common/cli/choice_option.h"
#include "common/cli/help_formatter.h"

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
