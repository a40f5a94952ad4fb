// SPDX-License-Identifier: Apache-2.0
// The program that a tokenizer process runs, millrace_tokenizer.py, as text. So it always matches
// this build, and cannot be missing from the disk.
#pragma once

#include <string_view>

namespace millrace::tokenizer {

std::string_view tokenizer_script();

}  // namespace millrace::tokenizer
