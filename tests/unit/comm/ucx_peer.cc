// SPDX-License-Identifier: Apache-2.0
// A pattern server in a process of its own, for tests that kill it: ucx_peer auto|shm|tcp. Prints
// its address on a line "address host:port" (UCX also prints its warnings on standard output) and
// serves until standard input ends. On "die" it kills itself.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "comm/ucx/ucx_transport.h"
#include "tests/unit/comm/pattern_server.h"

int main(int argc, char** argv) {
  using namespace millrace::comm;
  const std::string_view name = argc > 1 ? argv[1] : "auto";
  const auto transports = name == "shm"   ? UcxTransports::kSharedMemory
                          : name == "tcp" ? UcxTransports::kTcp
                                          : UcxTransports::kAuto;
  auto transport = UcxTransport::create({.transports = transports});
  if (!transport.ok()) return 1;
  auto server = (*transport)->listen("127.0.0.1", 0, [](std::string_view request) {
    if (request == "die") raise(SIGKILL);
    return answer_with_pattern(request);
  });
  if (!server.ok()) return 1;
  std::printf("address %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
