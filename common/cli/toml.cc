// SPDX-License-Identifier: Apache-2.0
#include "common/cli/toml.h"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <sstream>

namespace millrace::cli {

namespace {

struct PlacedEntry {
  toml::source_position place;
  TomlEntry entry;
};

// The text of a value that an option takes; none: not such a value.
std::optional<std::string> value_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{:#}", number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  return std::nullopt;
}

Result<void> add_values(const toml::node& node, TomlEntry& entry) {
  const auto add = [&entry](const toml::node& one) -> Result<void> {
    auto text = value_text(one);
    if (!text) {
      return Error(Errc::kInvalidArgument,
                   fmt::format("{}: {}: expected a string in quotes, a number, true or false",
                               one.source().begin.line, entry.key));
    }
    entry.values.push_back(*std::move(text));
    entry.is_string = one.is_string();
    return {};
  };
  const toml::array* array = node.as_array();
  if (array == nullptr) return add(node);
  entry.is_array = true;
  for (const toml::node& one : *array) {
    if (Result<void> status = add(one); !status.ok()) return status;
  }
  return {};
}

Result<void> add_entries(const toml::table& table, const std::string& name,
                         std::vector<PlacedEntry>& entries) {
  for (const auto& [key, node] : table) {
    if (const toml::table* inner = node.as_table()) {
      const std::string prefix = name.empty() ? "" : name + ".";
      Result<void> status = add_entries(*inner, prefix + std::string(key.str()), entries);
      if (!status.ok()) return status;
      continue;
    }
    PlacedEntry& placed = entries.emplace_back();
    placed.place = key.source().begin;
    placed.entry.table = name;
    placed.entry.key = key.str();
    placed.entry.line = static_cast<int>(placed.place.line);
    if (Result<void> status = add_values(node, placed.entry); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Result<std::vector<TomlEntry>> parse_toml(std::string_view text) {
  toml::table document;
  try {
    document = toml::parse(text);
  } catch (const toml::parse_error& e) {
    return Error(Errc::kInvalidArgument,
                 fmt::format("{}: {}", e.source().begin.line, e.description()));
  }
  std::vector<PlacedEntry> placed;  // the library orders keys by name
  if (Result<void> status = add_entries(document, "", placed); !status.ok()) return status.error();
  std::sort(placed.begin(), placed.end(),
            [](const PlacedEntry& a, const PlacedEntry& b) { return a.place < b.place; });
  std::vector<TomlEntry> entries;
  for (PlacedEntry& one : placed) entries.push_back(std::move(one.entry));
  return entries;
}

std::string toml_string(std::string_view text) {
  const toml::value<std::string> value{std::string(text)};
  std::ostringstream out;
  out << toml::toml_formatter(value, toml::format_flags::allow_unicode_strings);
  return out.str();
}

bool is_toml_number(std::string_view text) {
  const auto entries = parse_toml(fmt::format("a = {}", text));
  if (!entries.ok() || entries->size() != 1) return false;
  const TomlEntry& entry = entries->front();
  return !entry.is_string && !entry.is_array && entry.values.front() != "true" &&
         entry.values.front() != "false";
}

}  // namespace millrace::cli
