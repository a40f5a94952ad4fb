// SPDX-License-Identifier: Apache-2.0
#include "common/cli/config_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

#include "common/cli/help_formatter.h"

namespace millrace::cli {

namespace {

CLI::ConfigError wrong(const std::string& text) {
  return {text, CLI::ExitCodes::ConfigError};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(ConfigFiles::kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || !file.eof()) {
    throw wrong(fmt::format("{}: cannot be read, or has more than {} bytes", path,
                            ConfigFiles::kMaxFileBytes));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

bool is_flag(const CLI::Option& option) {
  return option.get_expected_max() == 0 || option.get_type_size() == 0;
}

bool is_number(const CLI::Option& option) {
  return HelpFormatter().make_option_opts(&option) == " N";
}

bool is_secret(const CLI::Option& option) {
  return option.get_type_name() == kSecret;
}

// Positional arguments, and what is not for files: --help, --config.
bool is_key(const CLI::Option& option) {
  return option.get_configurable() && !option.get_lnames().empty();
}

// Options in files, in the order in which they count: those that come first stay.
class FileReader {
 public:
  explicit FileReader(CLI::App& app) : app_(app) {}

  void read(const std::string& path) {
    path_ = path;
    const auto entries = parse_toml(read_file(path));
    if (!entries.ok()) throw wrong(fmt::format("{}:{}", path, entries.error().message));
    std::vector<std::pair<CLI::Option*, const TomlEntry*>> chosen;
    for (const TomlEntry& entry : *entries) {
      CLI::App& command = find_command(entry);
      CLI::Option& option = find_option(command, entry);
      if (runs(command) && !is_decided(option)) chosen.emplace_back(&option, &entry);
    }
    // Only now, since options of one file do not overrule one another.
    for (const auto& [option, entry] : chosen) set(*option, *entry);
  }

 private:
  template <typename... Args>
  CLI::ConfigError at(const TomlEntry& entry, fmt::format_string<Args...> format,
                      Args&&... args) const {
    return wrong(fmt::format("{}:{}: {}", path_, entry.line,
                             fmt::format(format, std::forward<Args>(args)...)));
  }

  CLI::App* command_named(const std::string& name) const {
    for (CLI::App* command : app_.get_subcommands([](CLI::App*) { return true; })) {
      if (!name.empty() && command->get_name() == name) return command;
    }
    return nullptr;
  }

  CLI::App& find_command(const TomlEntry& entry) const {
    if (entry.table.empty()) return app_;
    if (CLI::App* command = command_named(entry.table)) return *command;
    throw at(entry, "[{}]: {} has no such command", entry.table, app_.get_name());
  }

  CLI::Option& find_option(CLI::App& command, const TomlEntry& entry) const {
    CLI::Option* option = command.get_option_no_throw("--" + entry.key);
    if (option == nullptr) throw at(entry, "{}: {}", entry.key, why_unknown(entry));
    if (!option->get_configurable()) throw at(entry, "{}: is not for files", entry.key);
    return *option;
  }

  std::string why_unknown(const TomlEntry& entry) const {
    std::string commands;
    for (CLI::App* command : app_.get_subcommands([](CLI::App*) { return true; })) {
      if (command->get_name().empty() || command->get_name() == entry.table) continue;
      if (command->get_option_no_throw("--" + entry.key) == nullptr) continue;
      commands += fmt::format("{}[{}]", commands.empty() ? "" : ", ", command->get_name());
    }
    if (!entry.table.empty() && app_.get_option_no_throw("--" + entry.key) != nullptr) {
      return "stands before all tables";
    }
    if (!commands.empty()) return "stands in " + commands;
    return fmt::format("{} has no such option",
                       app_.get_name() + (entry.table.empty() ? "" : " " + entry.table));
  }

  bool runs(const CLI::App& command) const {
    return &command == &app_ || app_.got_subcommand(&command);
  }

  bool is_decided(const CLI::Option& option) const {
    const auto decided = [this](const CLI::Option* one) {
      return one->count() > 0 || off_.contains(one);
    };
    const auto excluded = option.get_excludes();
    return decided(&option) || std::any_of(excluded.begin(), excluded.end(), decided);
  }

  void set(CLI::Option& option, const TomlEntry& entry) {
    if (is_flag(option)) return set_flag(option, entry);
    if (entry.is_array && option.get_expected_max() == 1) {
      throw at(entry, "{}: takes one value, not an array", entry.key);
    }
    try {
      for (const std::string& value : entry.values) option.add_result(value);
      if (!entry.values.empty()) option.run_callback();
    } catch (const CLI::ParseError& e) {
      throw at(entry, "{}", e.what());
    }
  }

  void set_flag(CLI::Option& option, const TomlEntry& entry) {
    const std::string value = entry.values.size() == 1 ? entry.values.front() : "";
    if (entry.is_array || entry.is_string || (value != "true" && value != "false")) {
      throw at(entry, "{}: is true or false", entry.key);
    }
    if (value == "true") {
      option.add_result(option.get_flag_value(entry.key, value));
    } else {
      off_.insert(&option);
    }
  }

  CLI::App& app_;
  std::string path_;
  std::set<const CLI::Option*> off_;  // flags that are false
};

// Breaks a text into lines of a comment.
void write_comment(std::ostream& out, const std::string& text) {
  constexpr size_t kWidth = 100;
  std::istringstream words(text);
  std::string line = "#";
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kWidth) {
      out << line << '\n';
      line = "#";
    }
    line += ' ' + word;
  }
  out << line << '\n';
}

std::string value_text(const CLI::Option& option) {
  if (is_flag(option)) {
    const std::string& key = option.get_lnames().front();
    return option.results().front() == option.get_flag_value(key, "true") ? "true" : "false";
  }
  std::string text;
  for (const std::string& result : option.results()) {
    if (!text.empty()) text += ", ";
    text += is_number(option) && is_toml_number(result) ? result : toml_string(result);
  }
  return option.get_expected_max() == 1 ? text : "[" + text + "]";
}

void write_option(std::ostream& out, const CLI::Option& option) {
  const HelpFormatter help;
  const std::string& key = option.get_lnames().front();
  const std::string kind = is_flag(option) ? " true" : help.make_option_opts(&option);
  const std::string meaning = help.make_option_desc(&option);
  out << '\n';
  if (!meaning.empty()) write_comment(out, meaning);
  if (option.count() == 0) {
    out << "# " << key << " =" << kind << '\n';
  } else if (is_secret(option)) {
    out << "# " << key << " is set, and not shown\n";
  } else {
    out << key << " = " << value_text(option) << '\n';
  }
}

// Of the app and of its groups of options.
void write_options(std::ostream& out, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options({})) {
    if (is_key(*option)) write_option(out, *option);
  }
  for (const CLI::App* group : app.get_subcommands({})) {
    if (group->get_name().empty()) write_options(out, *group);
  }
}

}  // namespace

std::vector<CLI::ConfigItem> ConfigFiles::from_config(std::istream& /*input*/) const {
  if (read_) return {};
  read_ = true;
  FileReader reader(app_);
  const auto& paths = app_.get_config_ptr()->results();
  std::for_each(paths.rbegin(), paths.rend(), [&](const std::string& path) { reader.read(path); });
  return {};
}

std::string ConfigFiles::to_config(const CLI::App* app, bool /*default_also*/,
                                   bool /*write_description*/, std::string /*prefix*/) const {
  std::ostringstream out;
  out << "# Options of " << app->get_name() << ", for --config. A line in # sets nothing.\n";
  write_options(out, *app);
  const bool all = app->get_subcommands().empty();
  for (const CLI::App* command : app->get_subcommands({})) {
    if (command->get_name().empty() || !(all || app->got_subcommand(command))) continue;
    out << "\n[" << command->get_name() << "]\n";
    write_options(out, *command);
  }
  return out.str();
}

}  // namespace millrace::cli
