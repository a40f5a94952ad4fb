// SPDX-License-Identifier: Apache-2.0
// As pull.c, in C++, layer by layer, into [kv heads, tokens, head dim].
//   c++ -std=c++20 pull.cc -o pull $(pkg-config --cflags --libs millrace-kvclient) && ./pull <response.json
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <millrace/millrace_kv.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace kv = millrace::kv;

int main() try {
  const std::string json{std::istreambuf_iterator<char>(std::cin), {}};
  const kv::Manifest manifest(json);
  const auto& info = manifest.info();

  // The engine's memory: blocks of 64 tokens, of which the prompt gets all, in order.
  std::vector<int32_t> blocks((info.num_tokens + 63) / 64);
  std::iota(blocks.begin(), blocks.end(), 0);
  const int64_t row = int64_t{info.head_dim} * info.dtype_bytes,
                head = std::ssize(blocks) * 64 * row;
  std::vector<std::vector<std::byte>> memory(2 * info.num_layers);
  std::vector<mkv_layer_destination> layers;
  for (auto& plane : memory) plane.resize(info.num_kv_heads * head);
  for (int32_t i = 0; i < info.num_layers; ++i) {
    layers.push_back({.k = memory[2 * i].data(),
                      .v = memory[2 * i + 1].data(),
                      .block_stride = 64 * row,
                      .head_stride = head,
                      .token_stride = row});
  }

  kv::Client client;
  kv::PullRequest request(manifest);
  kv::Pull pull = client.start(manifest, request.to(blocks, layers));
  for (int32_t i = 0; i < info.num_layers; ++i) {
    pull.wait_layer(i);
    std::cout << "layer " << i << " is here\n";
  }
  std::cout << pull.stats().bytes << " bytes; the first token is " << info.first_token_id << '\n';
} catch (const kv::Error& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
