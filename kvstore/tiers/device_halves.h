// SPDX-License-Identifier: Apache-2.0
// Where pages that are to be written to slots also lie in the memory of the device that has the slots: the first
// half of page i (its keys) at k + i halves, the second half (its values) at v + i halves. So the device can copy
// them itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::kvstore {

struct DeviceHalves {
  const std::byte* k = nullptr;  // null: they do not lie there
  const std::byte* v = nullptr;

  bool any() const { return k != nullptr; }
  // Those of the pages behind the first ones, whose halves have `bytes` together.
  DeviceHalves after(int64_t bytes) const {
    return any() ? DeviceHalves{k + bytes, v + bytes} : DeviceHalves{};
  }
};

}  // namespace millrace::kvstore
