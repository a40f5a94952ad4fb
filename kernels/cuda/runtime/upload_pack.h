// SPDX-License-Identifier: Apache-2.0
// Packs the small host arrays of an operation into one copy. Each separate copy would hold up the
// stream for some microseconds, which matters to a short operation.
//
//   UploadPack pack;
//   const auto heads = pack.add(params.heads);
//   const auto tiles = pack.add(params.tiles);
//   pack.send(context.scratch);
//   some_kernel<<<..., context.stream>>>(pack[heads], pack[tiles]);
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "common/units.h"
#include "kernels/cuda/runtime/scratch.h"

namespace millrace::kernels::cuda {

class UploadPack {
 public:
  // The place of an array in the pack.
  template <typename T>
  struct Place {
    size_t offset_bytes = 0;
  };

  // Reads `values` before it returns.
  template <typename T>
  Place<std::remove_const_t<T>> add(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const Place<std::remove_const_t<T>> place = {
        static_cast<size_t>(round_up(std::ssize(bytes_), kAlignmentBytes))};
    bytes_.resize(place.offset_bytes + values.size_bytes());
    if (!values.empty()) {
      std::memcpy(bytes_.data() + place.offset_bytes, values.data(), values.size_bytes());
    }
    return place;
  }

  void send(Scratch& scratch) { device_ = scratch.upload(std::span(bytes_)); }

  // Device memory that lives as long as the scratch. Only after send().
  template <typename T>
  const T* operator[](Place<T> place) const {
    return reinterpret_cast<const T*>(device_ + place.offset_bytes);
  }

 private:
  static constexpr int64_t kAlignmentBytes = 16;

  std::vector<std::byte> bytes_;
  const std::byte* device_ = nullptr;
};

}  // namespace millrace::kernels::cuda
