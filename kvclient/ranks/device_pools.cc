// SPDX-License-Identifier: Apache-2.0
#include "kvclient/ranks/device_pools.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "common/log.h"

namespace millrace::kvclient {

namespace {

// A rank that does not accept a connection for this long is as good as gone.
constexpr std::chrono::seconds kConnectLimit{5};

}  // namespace

DevicePools::~DevicePools() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (changed_.valid()) ::eventfd_write(changed_.get(), 1);
  }
  if (watcher_.joinable()) watcher_.join();
}

void DevicePools::learn(const std::string& socket, FileDescriptor memory, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (pools_.contains(socket)) return;
  }
  // Without this connection nobody would report the rank's end, and its GPU memory would be kept.
  // So if it fails, pages come by way of the host.
  auto rank = comm::MemfdConnection::open(socket, Deadline::after(kConnectLimit));
  if (!rank.ok()) return;
  const std::lock_guard lock(mutex_);
  if (!changed_.valid()) {
    changed_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!changed_.valid()) return;
    watcher_ = std::thread([this] { watch(); });
  }
  pools_.try_emplace(
      socket,
      Pool{.memory = std::move(memory), .bytes = bytes, .rank = std::move(*rank), .mapped = {}});
  ::eventfd_write(changed_.get(), 1);
}

std::shared_ptr<const DevicePool> DevicePools::get(const std::string& address,
                                                   const std::string& socket, int32_t device) {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(socket);
  if (known == pools_.end()) return nullptr;
  Pool& pool = known->second;
  const auto mapped = pool.mapped.find(device);
  if (mapped != pool.mapped.end()) return mapped->second;
  auto made = copier_.map(device, pool.memory.get(), pool.bytes);
  if (!made.ok()) {
    log::info("pages of {} come to device {} by way of host memory, not from its device pool: {}",
              address, device, made.error().message);
  }
  return pool.mapped.emplace(device, made.ok() ? std::move(*made) : nullptr).first->second;
}

void DevicePools::watch() {
  while (true) {
    std::vector<pollfd> polled{{.fd = changed_.get(), .events = POLLIN, .revents = 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (const auto& [socket, pool] : pools_) {
        polled.push_back({.fd = pool.rank->descriptor(), .events = POLLIN, .revents = 0});
      }
    }
    if (::poll(polled.data(), polled.size(), -1) <= 0) continue;
    eventfd_t count = 0;
    if (polled.front().revents != 0) ::eventfd_read(changed_.get(), &count);
    std::vector<int> hung_up;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) hung_up.push_back(polled[i].fd);
    }
    const auto ended = take_ended(hung_up);
  }
}

std::vector<DevicePools::Pool> DevicePools::take_ended(const std::vector<int>& hung_up) {
  std::vector<Pool> ended;
  const std::lock_guard lock(mutex_);
  for (auto entry = pools_.begin(); entry != pools_.end();) {
    if (std::ranges::find(hung_up, entry->second.rank->descriptor()) == hung_up.end()) {
      ++entry;
      continue;
    }
    ended.push_back(std::move(entry->second));
    entry = pools_.erase(entry);
  }
  return ended;
}

}  // namespace millrace::kvclient
