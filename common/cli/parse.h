// SPDX-License-Identifier: Apache-2.0
// How every program begins: one set of exit statuses for all command lines, and no program ends by
// SIGPIPE because whoever read its output, its log or a socket has gone. Writes report that instead.
#pragma once

#include <CLI/CLI.hpp>
#include <csignal>
#include <optional>

namespace millrace::cli {

inline constexpr int kUsageStatus = 2;

// None: go on. Otherwise the exit status: 0 after --help and --version, kUsageStatus after an
// invalid command line, with the error on stderr.
inline std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsageStatus;
  }
}

}  // namespace millrace::cli
