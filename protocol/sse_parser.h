// SPDX-License-Identifier: Apache-2.0
// Server-sent events, and a parser for a byte stream that may be cut anywhere. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace millrace::protocol {

struct SseEvent {
  std::string name;  // "" : has none
  std::string data;
};

// "event: layer\ndata: {...}\n\n"; `data` is one line.
std::string to_text(const SseEvent& event);

class SseParser {
 public:
  // The events completed by these bytes; comments are dropped. kTooLarge for an event over 64 MiB.
  Result<std::vector<SseEvent>> feed(std::string_view bytes);

 private:
  void take_line(std::string_view line, std::vector<SseEvent>& out);

  std::string unfinished_line_;
  SseEvent event_;
};

}  // namespace millrace::protocol
