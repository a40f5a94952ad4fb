// SPDX-License-Identifier: Apache-2.0
// A progress bar in text.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

// "[##########------------------------------]": always 42 characters. A total of 0 draws an empty
// bar.
std::string text_bar(int64_t done, int64_t total);

}  // namespace millrace
