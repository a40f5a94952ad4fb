// SPDX-License-Identifier: Apache-2.0
// A rank in a process of its own, whose device pool in the memory of a GPU has a whole cache:
// gpu_stored_rank GPU LAYERS TOKENS SPARE_SLOTS DAMAGED_SLOT. Otherwise as stored_rank.
// DAMAGED_SLOT: a slot of the pool that is overwritten behind the store's back; -1: none.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/unit/kvclient/gpu_rank_cache.h"
#include "tests/unit/kvclient/stored_ranks.h"
#include "worker/store/device_tier.h"

int main(int argc, char** argv) {
  using namespace millrace;
  MR_CHECK(argc == 6, "{} arguments", argc - 1);
  auto device = kernels::make_cuda_device({.index = std::atoi(argv[1])});
  MR_CHECK(device.ok(), "{}", device.error().to_string());
  comm::TcpTransport transport({.server_threads = 2});
  comm::LocalTransport unused;
  const test::FakeRanks cache(unused, test::gpu_rank_cache(std::atoi(argv[2]), std::atoi(argv[3])));
  const auto& layout = cache.manifest().layout;
  const int64_t pages = cache.manifest().num_pages() * layout.num_layers * layout.num_kv_heads;
  worker::DeviceTier* pool = nullptr;
  const test::StoredRanks ranks(
      transport, cache,
      {.host_pages = pages,
       .far_device_pages = pages + std::atoi(argv[4]),
       .device_memory = [&](int64_t num_slots, int64_t page_bytes) {
         auto made = worker::DeviceTier::create(**device, num_slots, page_bytes, /*shares=*/true);
         MR_CHECK(made.ok() && (*made)->shared_device(), "no memory to share");
         pool = made->get();
         return std::move(*made);
       }});
  if (const int slot = std::atoi(argv[5]); slot >= 0) {
    const std::vector<std::byte> wrong(static_cast<size_t>(cache.manifest().page_bytes()),
                                       std::byte{0x5a});
    MR_CHECK(pool->write(slot, wrong).ok(), "slot {}", slot);
  }
  std::printf("manifest %s\n", kvclient::to_json(ranks.manifest()).c_str());
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}
