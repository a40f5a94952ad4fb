// SPDX-License-Identifier: Apache-2.0
#include "kernels/api/host_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/far_device.h"

namespace millrace::kernels {
namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(10));
}

std::unique_ptr<Device> make_far_device() {
  return std::make_unique<test::FarDevice>(make_cpu_device({.num_threads = 1}));
}

TEST(HostWindow, OnAHostsDeviceIsTheMemoryItself) {
  const auto device = make_cpu_device({.num_threads = 1});
  const auto buffer = *device->allocate(64);
  auto window = *HostWindow::create(*device, 64);
  const auto view = window.read(buffer.as<char>() + 8, 16, soon());
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(static_cast<void*>(view->data()), buffer.as<char>() + 8);
  EXPECT_EQ(view->size(), 16U);
}

TEST(HostWindow, ReadsWhatTheDeviceHasAndWritesItBack) {
  const auto device = make_far_device();
  const auto buffer = *device->allocate(64);
  std::vector<char> values(64, 'a');
  device->copy(buffer.data(), values.data(), 64);
  auto window = *HostWindow::create(*device, 32);

  const auto view = window.read(buffer.as<char>() + 16, 32, soon());
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(std::ranges::all_of(*view, [](std::byte b) { return b == std::byte{'a'}; }));
  std::ranges::fill(*view, std::byte{'b'});
  window.write(buffer.as<char>() + 16, 32);

  std::vector<char> back(64);
  device->copy(back.data(), buffer.data(), 64);
  ASSERT_TRUE(device->synchronize(soon()).ok());
  EXPECT_EQ(std::string(back.begin(), back.end()),
            std::string(16, 'a') + std::string(32, 'b') + std::string(16, 'a'));
}

TEST(HostWindow, FillingWaitsForTheWriteBefore) {
  const auto device = make_far_device();
  const auto buffer = *device->allocate(32);
  auto window = *HostWindow::create(*device, 16);
  for (const int64_t at : {0, 16}) {
    const auto view = window.fill(buffer.as<char>() + at, 16, soon());
    ASSERT_TRUE(view.ok());
    std::ranges::fill(*view, std::byte(at + 1));
    window.write(buffer.as<char>() + at, 16);
  }
  std::vector<char> back(32);
  device->copy(back.data(), buffer.data(), 32);
  ASSERT_TRUE(device->synchronize(soon()).ok());
  EXPECT_EQ(back[0], 1);
  EXPECT_EQ(back[15], 1);
  EXPECT_EQ(back[16], 17);
}

}  // namespace
}  // namespace millrace::kernels
