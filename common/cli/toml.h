// SPDX-License-Identifier: Apache-2.0
// Reads options from TOML: tables of keys with strings, numbers, true and false, or arrays of these.
// What no option takes is refused by name: dates, tables in arrays, arrays in arrays. Not for threads
// to share; keeps nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace millrace::cli {

struct TomlEntry {
  std::string table;  // "" before the first one; with dots where tables are nested
  std::string key;
  // As text: strings without quotes and escapes, numbers in decimal.
  std::vector<std::string> values;
  bool is_array = false;
  bool is_string = false;  // or strings
  int line = 0;            // from 1
};

// In the order of the text. kInvalidArgument begins with the line, "3: ...".
Result<std::vector<TomlEntry>> parse_toml(std::string_view text);

// The text as a TOML string, in quotes.
std::string toml_string(std::string_view text);

// Whether TOML takes the text as a number.
bool is_toml_number(std::string_view text);

}  // namespace millrace::cli
