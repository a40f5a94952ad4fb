// SPDX-License-Identifier: Apache-2.0
#include "common/cli/parse.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "common/cli/config_files.h"

namespace millrace::cli {

namespace {

int exit_status(const CLI::App& app, const CLI::ParseError& e) {
  return app.exit(e) == 0 ? 0 : kUsageStatus;
}

CLI::Option& add_config_options(CLI::App& app) {
  if (CLI::Option* print = app.get_option_no_throw("--print-config")) return *print;
  app.set_config(
         "--config", "",
         "file with options, in TOML; the command line wins, then the last of several files")
      ->type_name("FILE")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false);
  auto* print = app.add_flag("--print-config");
  print->description("print the options, those that are set and the others, as such a file");
  print->configurable(false);
  return *print;
}

}  // namespace

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);
  const CLI::Option& print = add_config_options(app);
  app.config_formatter(std::make_shared<ConfigFiles>(app));
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& e) {
    // A file may be printed before it has all that it needs.
    if (print.count() == 0) return exit_status(app, e);
  } catch (const CLI::ParseError& e) {
    return exit_status(app, e);
  }
  if (print.count() == 0) return std::nullopt;
  std::fputs(app.config_to_str().c_str(), stdout);
  return 0;
}

}  // namespace millrace::cli
