// SPDX-License-Identifier: Apache-2.0
// The settings of a coordinator's tokenizers.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "common/clock.h"

namespace millrace::coordinator {

struct TokenizerSettings {
  std::map<std::string, std::string> directories;  // by model; each has tokenizer.json
  std::string python = "python3";
  bool chat = false;  // each has a chat template as well
  int processes = 2;  // of each model
  // For one text, including waiting. A million tokens take 1.5 s of a core (docs/adr/0020).
  Duration timeout = std::chrono::seconds(60);
};

}  // namespace millrace::coordinator
