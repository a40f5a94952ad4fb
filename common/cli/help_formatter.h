// SPDX-License-Identifier: Apache-2.0
// The look of --help in all programs: name, kind of value, what it means, default.
//   --tp N                          tensor-parallel ranks (default 1)
// type_name() names the kind of value, option_text() where it has a colon.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace millrace::cli {

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (!option->get_option_text().empty()) return " " + option->get_option_text();
    if (option->get_type_size() == 0) return {};
    // CLI11 appends what the checks have to say, after a colon.
    const std::string type = option->get_type_name();
    const std::string kind = type.substr(0, type.find(':'));
    const bool number = kind == "INT" || kind == "UINT" || kind == "FLOAT";
    return " " + (number ? "N" : kind);
  }

  std::string make_description(const CLI::App* app) const override {
    return CLI::Formatter::make_description(app) + "\n";
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    const std::string value = option->get_default_str();
    if (option->get_required() && !option->get_positional()) {
      text += " (required)";
    } else if (!value.empty()) {
      text += " (default " + value + ")";
    }
    return text;
  }
};

}  // namespace millrace::cli
