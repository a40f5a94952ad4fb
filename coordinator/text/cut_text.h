// SPDX-License-Identifier: Apache-2.0
// Limits the length of a peer's text before it goes into logs and answers.
#pragma once

#include <fmt/format.h>

#include <string>

namespace millrace::coordinator {

inline constexpr size_t kMaxMessageBytes = 2000;

// `text`, or its beginning (whole UTF-8 characters) and its full length.
inline std::string cut_text(std::string text, size_t max_bytes = kMaxMessageBytes) {
  if (text.size() <= max_bytes) return text;
  const size_t num_bytes = text.size();
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text + fmt::format("... ({} bytes)", num_bytes);
}

}  // namespace millrace::coordinator
