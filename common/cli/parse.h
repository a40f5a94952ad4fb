// SPDX-License-Identifier: Apache-2.0
// One set of exit statuses for all command lines.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace millrace::cli {

inline constexpr int kUsageStatus = 2;

// None: go on. Otherwise the exit status: 0 after --help and --version, kUsageStatus after an
// invalid command line, with the error on stderr.
inline std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsageStatus;
  }
}

}  // namespace millrace::cli
