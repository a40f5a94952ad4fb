// How far something is, drawn in text.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

// "[##########------------------------------]": 42 characters, whatever the numbers. A total of 0
// draws nothing done.
std::string text_bar(int64_t done, int64_t total);

}  // namespace millrace
