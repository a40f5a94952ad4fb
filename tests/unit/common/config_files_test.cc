// SPDX-License-Identifier: Apache-2.0
#include "common/cli/config_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/cli/choice_option.h"
#include "common/cli/number_range.h"
#include "common/cli/parse.h"
#include "tests/support/temp_directory.h"

namespace millrace::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A program as ours are: options of its own, and two commands that share a variable.
struct Program {
  Program() {
    app.fallthrough();
    app.add_option("--model", model, "what to pour")->type_name("DIR")->required();
    app.add_option("--count", count, "how often")->check(number_range(1, 9));
    app.add_option("--name", names, "of cups")->allow_extra_args(false);
    app.add_flag("--hot", hot, "heat it");
    app.add_flag("!--no-lid", lid, "leave it open");
    add_choice<int>(app, "--size", size, {{"small", 1}, {"large", 2}}, "of a cup");
    auto* share = app.add_option("--share", share_of_cup, "of a cup");
    app.add_option("--drops", drops, "instead")->excludes(share);
    app.add_option("--salt", salt, "nobody's business")->type_name(kSecret);
    for (const char* name : {"stir", "serve"}) {
      auto* command = app.add_subcommand(name);
      command->add_option("--times", times, "in all");
    }
    app.get_subcommand("serve")->add_option("--guest", guest, "for whom");
  }

  // What the program says on stderr and stdout; sets `status`.
  std::string run(std::vector<std::string> arguments) {
    std::vector<const char*> argv = {"pour"};
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    status = parse(app, static_cast<int>(argv.size()), argv.data());
    std::fflush(stdout);
    const std::string said = ::testing::internal::GetCapturedStdout();
    return said + ::testing::internal::GetCapturedStderr();
  }

  CLI::App app{"Pours.", "pour"};
  std::string model, salt, guest;
  std::vector<std::string> names;
  int count = 3, size = 1, times = 0, drops = 0;
  double share_of_cup = 1;
  bool hot = false, lid = true;
  std::optional<int> status;
};

class ConfigFilesTest : public ::testing::Test {
 protected:
  std::string file(const std::string& text, const std::string& name = "a.toml") {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  test::TempDirectory directory_;
};

TEST_F(ConfigFilesTest, AFileSetsOptionsByTheirNames) {
  Program program;
  const auto path = file(
      "model = \"/models/a b\"\ncount = 4\nname = ['x', 'y']\nhot = true\nno-lid = true\n"
      "size = \"large\"\n");
  EXPECT_EQ(program.run({"--config", path}), "");
  EXPECT_EQ(program.status, std::nullopt);
  EXPECT_EQ(program.model, "/models/a b");
  EXPECT_EQ(program.count, 4);
  EXPECT_THAT(program.names, ElementsAre("x", "y"));
  EXPECT_TRUE(program.hot);
  EXPECT_FALSE(program.lid);
  EXPECT_EQ(program.size, 2);
}

TEST_F(ConfigFilesTest, TheCommandLineWinsThenTheLastFile) {
  Program program;
  const auto first = file("model = \"a\"\ncount = 4\nname = ['x']\nhot = true", "first.toml");
  const auto last = file("model = \"b\"\ncount = 5\nhot = false", "last.toml");
  program.run({"--config", first, "--count", "6", "--config", last, "--name", "z"});
  EXPECT_EQ(program.status, std::nullopt);
  EXPECT_EQ(program.model, "b");
  EXPECT_EQ(program.count, 6);
  EXPECT_THAT(program.names, ElementsAre("z"));
  EXPECT_FALSE(program.hot);
}

TEST_F(ConfigFilesTest, AnOptionLosesToOneThatExcludesIt) {
  const auto path = file("model = \"a\"\nshare = 0.5");
  Program program;
  EXPECT_EQ(program.run({"--config", path, "--drops", "3"}), "");
  EXPECT_EQ(program.status, std::nullopt);
  EXPECT_EQ(program.share_of_cup, 1);
  EXPECT_EQ(program.drops, 3);
  // But not to one in its own file.
  Program other;
  EXPECT_THAT(other.run({"--config", file("model = 'a'\nshare = 0.5\ndrops = 3")}),
              HasSubstr("excludes"));
  EXPECT_EQ(other.status, kUsageStatus);
}

TEST_F(ConfigFilesTest, ATableIsForItsCommandAlone) {
  const auto path = file("model = 'a'\n[stir]\ntimes = 7\n[serve]\ntimes = 8\nguest = 'g'");
  Program stirring;
  stirring.run({"stir", "--config", path});
  EXPECT_EQ(stirring.times, 7);
  EXPECT_EQ(stirring.guest, "");
  Program serving;
  serving.run({"--config", path, "serve", "--guest", "h"});
  EXPECT_EQ(serving.times, 8);
  EXPECT_EQ(serving.guest, "h");
}

TEST_F(ConfigFilesTest, AnErrorNamesFileLineAndKey) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"model = 'a'\ncups = 1", ":2: cups: pour has no such option"},
      {"[stir]\ncups = 1", ":2: cups: pour stir has no such option"},
      {"times = 1", ":1: times: stands in [stir], [serve]"},
      {"[stir]\nmodel = 'a'", ":2: model: stands before all tables"},
      {"[stir]\nguest = 'a'", ":2: guest: stands in [serve]"},
      {"[spill]\na = 1", ":2: [spill]: pour has no such command"},
      {"help = true", ":1: help: is not for files"},
      {"config = 'b'", ":1: config: is not for files"},
      {"\ncount = 10", ":2: --count: must be a whole number from 1 to 9; not '10'"},
      {"count = [1, 2]", ":1: count: takes one value, not an array"},
      {"hot = 'true'", ":1: hot: is true or false"},
      {"hot = 1", ":1: hot: is true or false"},
      {"size = 'huge'", ":1: --size: huge not in {small,large}"},
      {"model = a", ":1: Error while parsing value"}};
  for (const auto& [text, message] : wrong) {
    Program program;
    const auto path = file(text);
    EXPECT_THAT(program.run({"--config", path}), HasSubstr(path + message)) << text;
    EXPECT_EQ(program.status, kUsageStatus);
  }
  Program program;
  EXPECT_THAT(program.run({"--config", directory_.path() + "/missing"}), HasSubstr("missing"));
  EXPECT_EQ(program.status, kUsageStatus);
}

TEST_F(ConfigFilesTest, AFileHasALimit) {
  Program program;
  const auto path = file("# " + std::string(ConfigFiles::kMaxFileBytes, 'x'));
  EXPECT_THAT(program.run({"--config", path}), HasSubstr(path + ": cannot be read, or has more"));
  EXPECT_EQ(program.status, kUsageStatus);
}

TEST_F(ConfigFilesTest, WhatIsPrintedSetsTheSame) {
  Program given;
  const auto printed =
      given.run({"--model", "a \"b\" #c", "--count", "4", "--name", "x", "--name", "y", "--no-lid",
                 "--size", "large", "--drops", "5", "--print-config", "serve", "--guest", "7"});
  EXPECT_EQ(given.status, 0);
  for (const char* line :
       {"\nmodel = \"a \\\"b\\\" #c\"\n", "\ncount = 4\n", "\nname = [\"x\", \"y\"]\n",
        "\nno-lid = true\n", "\nsize = \"large\"\n", "\n# share = N\n", "\n# hot = true\n",
        "\n[serve]\n", "\nguest = \"7\"\n"}) {
    EXPECT_THAT(printed, HasSubstr(line));
  }
  EXPECT_THAT(printed, Not(HasSubstr("[stir]")));
  Program read;
  EXPECT_EQ(read.run({"--config", file(printed), "--print-config", "serve"}), printed);
  EXPECT_FALSE(read.lid);
  EXPECT_EQ(read.guest, "7");
}

TEST_F(ConfigFilesTest, ASecretIsNotPrinted) {
  Program program;
  const auto printed = program.run({"--salt", "sesame", "--print-config"});
  EXPECT_EQ(program.status, 0);
  EXPECT_EQ(program.salt, "sesame");
  EXPECT_THAT(printed, Not(HasSubstr("sesame")));
  EXPECT_THAT(printed, HasSubstr("# salt is set, and not shown\n"));
}

TEST_F(ConfigFilesTest, AllCommandsArePrintedIfNoneIsChosen) {
  Program program;
  program.app.require_subcommand(1);
  const auto printed = program.run({"--print-config"});
  EXPECT_EQ(program.status, 0);
  EXPECT_THAT(printed, HasSubstr("# what to pour (required)\n# model = DIR\n"));
  EXPECT_THAT(printed, HasSubstr("\n[stir]\n"));
  EXPECT_THAT(printed, HasSubstr("\n[serve]\n"));
}

}  // namespace
}  // namespace millrace::cli
