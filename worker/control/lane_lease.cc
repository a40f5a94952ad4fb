#include "worker/control/lane_lease.h"

#include <charconv>

#include "common/random_id.h"

namespace millrace::worker {

namespace {

// Not a hexadecimal digit, as ids are of.
constexpr char kBeforeLane = '-';

}  // namespace

std::string new_lane_lease(int lane) {
  return random_id() + kBeforeLane + std::to_string(lane);
}

std::optional<int> lane_of_lease(std::string_view lease_id) {
  const size_t at = lease_id.rfind(kBeforeLane);
  if (at == std::string_view::npos) return std::nullopt;
  const auto text = lease_id.substr(at + 1);
  int lane = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), lane);
  const bool whole = status == std::errc() && end == text.data() + text.size();
  return whole && lane >= 0 ? std::optional(lane) : std::nullopt;
}

}  // namespace millrace::worker
