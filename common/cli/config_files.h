// SPDX-License-Identifier: Apache-2.0
// Options of a program from files, and as a file: --config and --print-config.
//
//   host = "10.0.0.10"       # --host 10.0.0.10
//   http-port = 8000         # --http-port 8000
//   tokenizer-chat = true    # --tokenizer-chat
//   tokenizer = ["a=/models/a", "b=/models/b"]
//   [prefill]                # options of the command `prefill`
//   lease-ms = 60000
//
// Keys are the names of the options, so a program has no other list of them. The command line wins
// over files, and a later file over an earlier one. An option that one of them excludes has lost,
// too. Tables of commands that do not run are checked for their keys alone.
#pragma once

#include <CLI/CLI.hpp>
#include <istream>
#include <string>
#include <vector>

#include "common/cli/toml.h"

namespace millrace::cli {

// type_name() of options whose values --print-config does not show.
inline constexpr const char* kSecret = "SECRET";

class ConfigFiles final : public CLI::Config {
 public:
  static constexpr size_t kMaxFileBytes = 1 << 20;

  // Sets the app's options from the files that --config names. `app` outlives this.
  explicit ConfigFiles(CLI::App& app) : app_(app) {}

  // CLI11 calls it for each file that is named, when it has read the command line. Reads all of
  // them the first time. Errors are CLI::ConfigError: "FILE:LINE: what".
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;
  // Every option with its meaning; those that are set, as they are set. Of a command if one is
  // chosen, else of all.
  std::string to_config(const CLI::App* app, bool default_also, bool write_description,
                        std::string prefix) const override;

 private:
  CLI::App& app_;
  mutable bool read_ = false;
};

}  // namespace millrace::cli
