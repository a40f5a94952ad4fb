// SPDX-License-Identifier: Apache-2.0
// How every program begins: one set of exit statuses for all command lines, options from files, and
// no program ends by SIGPIPE because whoever read its output, its log or a socket has gone. Writes
// report that instead.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace millrace::cli {

inline constexpr int kUsageStatus = 2;

// Adds --config and --print-config (config_files.h) to the app's options, and parses. An app with
// commands calls fallthrough() before it adds them, so that both may stand behind a command.
// None: go on. Otherwise the exit status: 0 after --help, --version and --print-config,
// kUsageStatus after an invalid command line or file, with the error on stderr.
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv);

}  // namespace millrace::cli
