// SPDX-License-Identifier: Apache-2.0
#include "common/units.h"

#include <array>
#include <charconv>
#include <limits>

namespace millrace {

namespace {
constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
}

Result<int64_t> parse_bytes(std::string_view text) {
  int64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (status != std::errc() || number < 0) {
    return error(Errc::kInvalidArgument, "'{}' is not a size; expected for example 1048576 or 1MiB",
                 text);
  }
  if (unit.empty()) return number;
  for (size_t power = 0; power < kUnits.size(); ++power) {
    if (unit != kUnits[power]) continue;
    if (number > (std::numeric_limits<int64_t>::max() >> (10 * power))) {
      return error(Errc::kTooLarge, "'{}' does not fit 64 bits", text);
    }
    return number << (10 * power);
  }
  return error(Errc::kInvalidArgument, "'{}': unknown unit '{}'; one of B, KiB, MiB, GiB, TiB",
               text, unit);
}

std::string format_bytes(int64_t bytes) {
  auto value = static_cast<double>(bytes);
  size_t power = 0;
  while (value >= 1024 && power + 1 < kUnits.size()) {
    value /= 1024;
    ++power;
  }
  if (power == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, kUnits[power]);
}

}  // namespace millrace
