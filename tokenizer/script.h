// The program that a tokenizer process runs, millrace_tokenizer.py, as text: it is always the one that
// this build speaks with, and has no place on disk to be missing from.
#pragma once

#include <string_view>

namespace millrace::tokenizer {

std::string_view tokenizer_script();

}  // namespace millrace::tokenizer
