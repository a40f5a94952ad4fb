// SPDX-License-Identifier: Apache-2.0
// Copies pieces of two planes on a device and compares them with plain copies on the host.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/api/device.h"

namespace millrace::test {

inline void expect_copied(kernels::Device& device, const std::vector<kernels::CopyPiece>& pieces) {
  constexpr int64_t kSourcePlane = 400'000, kDestinationPlane = 400'016;
  constexpr int64_t kPlanes = 2;
  std::vector<unsigned char> source(kPlanes * kSourcePlane);
  for (size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<unsigned char>(i * 31 + i / 251);
  const std::vector<unsigned char> untouched(kPlanes * kDestinationPlane, 0xEE);
  auto expected = untouched;
  for (int64_t plane = 0; plane < kPlanes; ++plane) {
    for (const auto& piece : pieces) {
      std::memcpy(expected.data() + plane * kDestinationPlane + piece.destination,
                  source.data() + plane * kSourcePlane + piece.source,
                  static_cast<size_t>(piece.bytes));
    }
  }

  auto from = device.allocate(std::ssize(source));
  auto to = device.allocate(std::ssize(untouched));
  ASSERT_TRUE(from.ok() && to.ok());
  device.copy(from->data(), source.data(), from->bytes());
  device.copy(to->data(), untouched.data(), to->bytes());
  device.copy_pieces({.destination = to->data(),
                      .destination_plane_bytes = kDestinationPlane,
                      .source = from->data(),
                      .source_plane_bytes = kSourcePlane,
                      .num_planes = kPlanes,
                      .pieces = pieces});
  std::vector<unsigned char> copied(untouched.size());
  device.copy(copied.data(), to->data(), to->bytes());
  ASSERT_TRUE(device.synchronize(Deadline::after(std::chrono::seconds(30))).ok());
  EXPECT_EQ(copied, expected);
}

// Long pieces that take several thread blocks, aligned and unaligned, and single words. Once few
// pieces, which a launch on a GPU carries with it, and once many.
inline void expect_pieces_are_copied(kernels::Device& device) {
  std::vector<kernels::CopyPiece> pieces = {{.destination = 0, .source = 160'000, .bytes = 131'104},
                                            {.destination = 131'108, .source = 4, .bytes = 70'012},
                                            {.destination = 399'996, .source = 399'996, .bytes = 4},
                                            {.destination = 300'000, .source = 8, .bytes = 0}};
  expect_copied(device, pieces);
  for (int64_t i = 0; i < 100; ++i) {
    pieces.push_back({.destination = 300'000 + 8 * i, .source = 220'000 + 12 * i, .bytes = 4});
  }
  expect_copied(device, pieces);
}

}  // namespace millrace::test
