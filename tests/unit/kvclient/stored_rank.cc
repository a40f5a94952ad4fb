// SPDX-License-Identifier: Apache-2.0
// Ranks with a cache in memory or on disk, in a process of its own, for tests that kill it:
// stored_rank LAYERS TOKENS HEAD_DIM HOST_PAGES READ_BYTES tcp|ucx. Prints its manifest on a line
// "manifest JSON" (UCX also prints its warnings on standard output) and serves until standard input
// ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "tests/unit/kvclient/stored_ranks.h"

int main(int argc, char** argv) {
  using namespace millrace;
  MR_CHECK(argc == 7, "{} arguments", argc - 1);
  std::unique_ptr<comm::Transport> transport;
  if (argv[6] == std::string_view("tcp")) {
    transport = std::make_unique<comm::TcpTransport>(comm::TcpOptions{.server_threads = 2});
  } else {
    transport = *comm::UcxTransport::create({.server_threads = 2});
  }
  comm::LocalTransport unused;
  const test::FakeRanks cache(unused, {.num_layers = std::atoi(argv[1]),
                                       .head_dim = std::atoi(argv[3]),
                                       .num_tokens = std::atoi(argv[2]),
                                       .tp = 1,
                                       .cp = 1});
  const test::StoredRanks ranks(
      *transport, cache, {.host_pages = std::atoi(argv[4]), .read_bytes = std::atoi(argv[5])});
  std::printf("\nmanifest %s\n", kvclient::to_json(ranks.manifest()).c_str());
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}
