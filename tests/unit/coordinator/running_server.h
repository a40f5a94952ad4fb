// SPDX-License-Identifier: Apache-2.0
// A coordinator on free ports, in a thread of its own, for the duration of a test.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "coordinator/server/server.h"

namespace millrace::coordinator {

// Heartbeats are so rare that a group never looks silent on a busy machine.
inline ServerOptions patient_options() {
  ServerOptions options;
  options.http_port = 0;
  options.group_port = 0;
  options.scheduler.heartbeat_interval = std::chrono::seconds(20);
  options.scheduler.group_patience = std::chrono::minutes(1);
  options.shutdown_timeout = std::chrono::seconds(10);
  return options;
}

class RunningServer {
 public:
  explicit RunningServer(const ServerOptions& options = patient_options(),
                         bool handle_signals = false) {
    auto created = Server::create(options);
    EXPECT_TRUE(created.ok()) << created.error().message;
    server_ = std::move(created).value();
    http_port_ = server_->http_port();
    group_port_ = server_->group_port();
    thread_ = std::thread([this, handle_signals] {
      server_->run(handle_signals);
      ended_.set_value();
    });
  }
  ~RunningServer() {
    server_->shut_down();
    server_->shut_down();
    thread_.join();
  }

  uint16_t http_port() const { return http_port_; }
  uint16_t group_port() const { return group_port_; }
  uint16_t admin_port() const { return server_->admin_port().value(); }
  void shut_down() { server_->shut_down(); }
  void reload() { server_->reload(); }
  bool ended_within(std::chrono::seconds patience) {
    return end_.wait_for(patience) == std::future_status::ready;
  }

 private:
  std::unique_ptr<Server> server_;
  uint16_t http_port_ = 0;
  uint16_t group_port_ = 0;
  std::promise<void> ended_;
  std::future<void> end_ = ended_.get_future();
  std::thread thread_;
};

}  // namespace millrace::coordinator
