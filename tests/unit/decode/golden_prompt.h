// SPDX-License-Identifier: Apache-2.0
// How Transformers continues the prompts of a model of tests/models/architectures (make_models.py).
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace millrace::test {

inline std::string architecture(const std::string& name) {
  return std::string(MILLRACE_SOURCE_DIR "/tests/models/architectures/") + name;
}

struct GoldenPrompt {
  std::vector<int32_t> tokens;
  std::vector<int32_t> generated;
};

inline std::vector<GoldenPrompt> golden_prompts(const std::string& model_directory) {
  std::ifstream file(model_directory + "/golden.json");
  std::vector<GoldenPrompt> prompts;
  const auto golden = boost::json::parse(file);
  for (const auto& entry : golden.as_array()) {
    const auto list = [&](const char* name) {
      return boost::json::value_to<std::vector<int32_t>>(entry.at(name));
    };
    prompts.push_back({list("prompt_token_ids"), list("generated_token_ids")});
  }
  return prompts;
}

}  // namespace millrace::test
