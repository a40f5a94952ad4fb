// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/ranking.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace millrace::kernels::cpu {
namespace {

constexpr uint32_t kSignBit = 0x80000000U;

// Maps floats to integers in reverse order. Adding 0 makes both zeros equal.
uint32_t descending_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0F);
  return (bits & kSignBit) != 0 ? bits : ~(bits | kSignBit);
}

// The value of a key, if it is not negative.
double value_of(uint64_t key) {
  return double{std::bit_cast<float>(~static_cast<uint32_t>(key >> 32) & ~kSignBit)};
}

int32_t position_of(uint64_t key) {
  return static_cast<int32_t>(key & 0xffffffffU);
}

}  // namespace

void Ranking::add(int32_t position, float value) {
  keys_.push_back(uint64_t{descending_bits(value)} << 32 | static_cast<uint32_t>(position));
}

void Ranking::add_forced(int32_t position) {
  keys_.push_back(static_cast<uint32_t>(position));
}

void Ranking::best(size_t count, std::vector<int32_t>& out) {
  count = std::min(count, keys_.size());
  const auto end = keys_.begin() + static_cast<ptrdiff_t>(count);
  if (end != keys_.end()) std::nth_element(keys_.begin(), end, keys_.end());
  std::transform(keys_.begin(), end, std::back_inserter(out), position_of);
}

// A quickselect that goes by sums instead of counts. It is linear; sorting all pages for every
// query representative would cost more than computing their scores.
void Ranking::cover(double target, std::vector<int32_t>& out) {
  constexpr ptrdiff_t kSortAtMost = 16;
  auto begin = keys_.begin();  // all keys before it are taken
  auto end = keys_.end();      // no key from here on is needed
  double taken = 0;
  while (end - begin > kSortAtMost) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    double upper = taken;
    for (auto key = begin; key != middle; ++key) upper += value_of(*key);
    if (upper >= target) {
      end = middle;
    } else {
      taken = upper;
      begin = middle;
    }
  }
  std::sort(begin, end);
  while (begin != end && !(taken >= target)) taken += value_of(*begin++);
  std::transform(keys_.begin(), begin, std::back_inserter(out), position_of);
}

}  // namespace millrace::kernels::cpu
