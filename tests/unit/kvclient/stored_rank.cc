// Ranks with a cache in memory or on disk, in a process of its own, for tests that kill it:
// stored_rank LAYERS TOKENS HEAD_DIM HOST_PAGES READ_BYTES. Prints its manifest on a line "manifest
// JSON" (UCX prints its warnings on standard output, too) and serves until standard input ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "comm/local/local_transport.h"
#include "comm/ucx/ucx_transport.h"
#include "tests/unit/kvclient/stored_ranks.h"

int main(int argc, char** argv) {
  using namespace millrace;
  MR_CHECK(argc == 6, "{} arguments", argc - 1);
  const auto transport = comm::UcxTransport::create({.server_threads = 2});
  MR_CHECK(transport.ok(), "{}", transport.error().to_string());
  comm::LocalTransport unused;
  const test::FakeRanks cache(unused, {.num_layers = std::atoi(argv[1]),
                                       .head_dim = std::atoi(argv[3]),
                                       .num_tokens = std::atoi(argv[2]),
                                       .tp = 1,
                                       .cp = 1});
  const test::StoredRanks ranks(
      **transport, cache, {.host_pages = std::atoi(argv[4]), .read_bytes = std::atoi(argv[5])});
  std::printf("\nmanifest %s\n", kvclient::to_json(ranks.manifest()).c_str());
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}
