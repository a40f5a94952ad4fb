// SPDX-License-Identifier: Apache-2.0
// Serves a cache of known bytes and prints its manifest as one line, then a line for each layer: the
// checksum of what a consumer has after pulling it (see consumer.c). Ends with its standard input.
#include <cstdio>
#include <iostream>

#include "comm/tcp/tcp_transport.h"
#include "kvclient/manifest/manifest.h"
#include "tests/unit/kvclient/fake_ranks.h"

int main() {
  using namespace millrace;
  comm::TcpTransport transport({});
  const test::FakeRanks ranks(transport, {.num_layers = 3,
                                          .num_kv_heads = 4,
                                          .head_dim = 64,
                                          .dtype = DType::kBFloat16,
                                          .num_tokens = 1000});
  const auto& manifest = ranks.manifest();
  std::string json = kvclient::to_json(manifest);
  std::printf("%s\n", json.c_str());
  // FNV-1a over K and V of every token, head by head.
  for (int32_t layer = 0; layer < manifest.layout.num_layers; ++layer) {
    uint64_t hash = 14695981039346656037u;
    const int64_t row = manifest.layout.head_dim * manifest.element_bytes();
    for (int32_t head = 0; head < manifest.layout.num_kv_heads; ++head) {
      for (int64_t token = 0; token < manifest.num_tokens; ++token) {
        const auto page = token % 64 == 0 || token == 0 ? ranks.page(layer, head, token / 64)
                                                        : std::vector<std::byte>();
        static std::vector<std::byte> bytes;
        if (!page.empty()) bytes = page;
        for (const int64_t half : {int64_t{0}, 64 * row}) {
          for (int64_t i = 0; i < row; ++i) {
            hash ^=
                std::to_integer<uint64_t>(bytes[static_cast<size_t>(half + token % 64 * row + i)]);
            hash *= 1099511628211u;
          }
        }
      }
    }
    std::printf("%016lx\n", static_cast<unsigned long>(hash));
  }
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}
