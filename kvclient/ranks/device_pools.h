// SPDX-License-Identifier: Apache-2.0
// Device pools of ranks on this host. Each is mapped once for all threads of a client, for each
// device that the client pulls into. GPU memory is scarce, so a pool is released when its rank has
// ended, even while nobody pulls. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/memfd/memfd_connection.h"
#include "common/system/file_descriptor.h"
#include "kvclient/device/device_copier.h"

namespace millrace::kvclient {

class DevicePools {
 public:
  // `copier` outlives the pools.
  explicit DevicePools(DeviceCopier& copier) : copier_(copier) {}
  DevicePools(const DevicePools&) = delete;
  DevicePools& operator=(const DevicePools&) = delete;
  ~DevicePools();

  // Takes what the rank behind a socket has sent of its pool.
  void learn(const std::string& socket, FileDescriptor memory, int64_t bytes);
  // Null if nothing is known of a pool, or the device cannot reach it, which is logged once. Must
  // not be kept beyond a request.
  std::shared_ptr<const DevicePool> get(const std::string& address, const std::string& socket,
                                        int32_t device);

 private:
  struct Pool {
    FileDescriptor memory;
    int64_t bytes = 0;
    std::unique_ptr<comm::MemfdConnection> rank;                  // hangs up when the rank ends
    std::map<int32_t, std::shared_ptr<const DevicePool>> mapped;  // by device; null: not reached
  };
  void watch();
  // Takes out the pools whose ranks have hung up; they are unmapped without the lock.
  std::vector<Pool> take_ended(const std::vector<int>& hung_up);

  DeviceCopier& copier_;
  std::mutex mutex_;
  std::map<std::string, Pool> pools_;  // by socket
  bool stopping_ = false;
  FileDescriptor changed_;  // an eventfd: pools_ or stopping_
  std::thread watcher_;     // from the first pool on
};

}  // namespace millrace::kvclient
