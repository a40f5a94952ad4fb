// SPDX-License-Identifier: Apache-2.0
#include "protocol/sse_parser.h"

#include <utility>

namespace millrace::protocol {

namespace {
constexpr size_t kMaxEventBytes = 64 << 20;
}

std::string to_text(const SseEvent& event) {
  const std::string name = event.name.empty() ? "" : fmt::format("event: {}\n", event.name);
  return fmt::format("{}data: {}\n\n", name, event.data);
}

Result<std::vector<SseEvent>> SseParser::feed(std::string_view bytes) {
  std::vector<SseEvent> out;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    unfinished_line_ += bytes.substr(0, end);
    if (unfinished_line_.size() + event_.data.size() > kMaxEventBytes) {
      return error(Errc::kTooLarge, "an event exceeds the limit of {} bytes", kMaxEventBytes);
    }
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    const std::string line = std::exchange(unfinished_line_, {});
    take_line(line, out);
  }
  return out;
}

void SseParser::take_line(std::string_view line, std::vector<SseEvent>& out) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.empty()) {
    if (!event_.data.empty()) out.push_back(std::move(event_));
    event_ = {};
    return;
  }
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "event") event_.name = value;
  if (field == "data") {
    if (!event_.data.empty()) event_.data += '\n';
    event_.data += value;
  }
}

}  // namespace millrace::protocol
