// SPDX-License-Identifier: Apache-2.0
// The coordinator as a part of a process: two listeners, one thread that owns the scheduler and all
// connections, and an orderly shutdown.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "coordinator/http/server_options.h"

namespace millrace::coordinator {

class Server {
 public:
  // Listens from here on; answers once run() is called.
  static Result<std::unique_ptr<Server>> create(const ServerOptions& options);
  ~Server();

  uint16_t http_port() const;
  uint16_t group_port() const;
  std::optional<uint16_t> admin_port() const;

  // Runs until shut down. With `handle_signals`, SIGTERM and SIGINT shut down, and SIGHUP reloads.
  void run(bool handle_signals);

  // From now on, not ready. New requests are refused, running ones get `shutdown_timeout` to end,
  // then run() returns. Thread-safe; a second call ends the patience.
  void shut_down();

  // Reads the files of the options again. A file that cannot be used is logged, and its last
  // contents stay valid. Thread-safe.
  void reload();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::coordinator
