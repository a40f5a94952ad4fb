// SPDX-License-Identifier: Apache-2.0
// Where a page is: the tiers of a KV store, from the fastest to the slowest. The numbers are those
// of the wire (protocol/kv_messages.proto).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace millrace {

enum class Tier : uint8_t { kDevice = 0, kHost = 1, kDisk = 2 };
inline constexpr std::array kTiers = {Tier::kDevice, Tier::kHost, Tier::kDisk};
inline constexpr int kNumTiers = static_cast<int>(kTiers.size());

// An unknown number, from a newer peer, counts as the slowest tier.
constexpr Tier tier_from_wire(uint32_t number) {
  return number < kTiers.size() ? kTiers[number] : kTiers.back();
}

// The tier's name in manifests and metrics: "device", "host", "disk".
constexpr std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
  }
  return "?";
}

// One value for each tier.
template <typename Value>
class PerTier {
 public:
  constexpr Value& operator[](Tier tier) { return values_[static_cast<size_t>(tier)]; }
  constexpr const Value& operator[](Tier tier) const { return values_[static_cast<size_t>(tier)]; }
  constexpr auto begin() const { return values_.begin(); }
  constexpr auto end() const { return values_.end(); }

 private:
  std::array<Value, kTiers.size()> values_{};
};

}  // namespace millrace
