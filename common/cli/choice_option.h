// SPDX-License-Identifier: Apache-2.0
// An option that takes one of a few words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace millrace::cli {

// Sets `value` to what the given word stands for; help and errors name the words, in this order.
// `value` outlives the parse and is one of the choices: the default.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& value,
                        const std::vector<std::pair<std::string, T>>& choices,
                        const std::string& help) {
  std::vector<std::string> words;
  std::string current;
  for (const auto& [word, meaning] : choices) {
    words.push_back(word);
    if (meaning == value) current = word;
  }
  const auto take = [&value, choices](const std::string& given) {
    for (const auto& [word, meaning] : choices) {
      if (word == given) value = meaning;
    }
  };
  return app.add_option_function<std::string>(name, take, help)
      ->check(CLI::IsMember(words))
      ->type_name(CLI::detail::join(words, "|"))
      ->default_str(current);
}

}  // namespace millrace::cli
