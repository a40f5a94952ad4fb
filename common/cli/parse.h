// One set of exit statuses for all command lines.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace millrace::cli {

inline constexpr int kUsageStatus = 2;

// None: go on. Else the status to end with: 0 after --help and --version, kUsageStatus after a
// command line that is wrong, which stderr then names.
inline std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsageStatus;
  }
}

}  // namespace millrace::cli
