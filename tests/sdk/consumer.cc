// SPDX-License-Identifier: Apache-2.0
// As consumer.c, in C++, into tensors [heads, tokens, dim] of K and of V. The example of
// docs/kv-client.md.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "comm/any/any_transport.h"
#include "kvclient/manifest/manifest.h"
#include "kvclient/pull_client.h"

namespace {

using namespace millrace;
using namespace std::chrono_literals;

constexpr int32_t kBlockTokens = 64;

struct Layer {
  std::vector<std::byte> k, v;
};

// [engine]
Result<void> pull_cache(const kvclient::Manifest& manifest, std::vector<Layer>& layers) {
  comm::AnyTransport transport(comm::TcpOptions{});
  kvclient::PullClient client(transport, {});

  const int64_t row = manifest.layout.head_dim * manifest.element_bytes();
  const int64_t num_blocks = (manifest.num_tokens + kBlockTokens - 1) / kBlockTokens;
  const int64_t head = num_blocks * kBlockTokens * row;
  kvclient::PullRequest request{
      .num_kv_heads = manifest.layout.num_kv_heads,
      .dtype = find_dtype(manifest.layout.dtype).value_or(DType::kBFloat16),
      .head_dim = manifest.layout.head_dim,
      .block_tokens = kBlockTokens,
      .num_tokens = manifest.num_tokens,
      .timeout = 60s};
  for (int64_t i = 0; i < num_blocks; ++i) request.block_ids.push_back(static_cast<int32_t>(i));
  layers.resize(static_cast<size_t>(manifest.layout.num_layers));
  for (auto& layer : layers) {
    layer.k.resize(static_cast<size_t>(manifest.layout.num_kv_heads * head));
    layer.v.resize(layer.k.size());
    request.layers.push_back({.k = layer.k.data(),
                              .v = layer.v.data(),
                              .block_stride = kBlockTokens * row,
                              .head_stride = head,
                              .token_stride = row});
  }

  MR_ASSIGN_OR_RETURN(const auto pull, client.start(manifest, std::move(request)));
  const auto end = pull->wait(Deadline::after(60s));
  return end ? *end : Error(Errc::kDeadlineExceeded, "the pull goes on");
}
// [engine]

uint64_t hash_of(const kvclient::Manifest& manifest, const Layer& layer) {
  const int64_t row = manifest.layout.head_dim * manifest.element_bytes();
  const int64_t head = std::ssize(layer.k) / manifest.layout.num_kv_heads;
  uint64_t hash = 14695981039346656037u;
  for (int64_t h = 0; h < manifest.layout.num_kv_heads; ++h) {
    for (int64_t token = 0; token < manifest.num_tokens; ++token) {
      for (const auto* plane : {&layer.k, &layer.v}) {
        for (int64_t i = 0; i < row; ++i) {
          const auto byte = (*plane)[static_cast<size_t>(h * head + token * row + i)];
          hash = (hash ^ std::to_integer<uint64_t>(byte)) * 1099511628211u;
        }
      }
    }
  }
  return hash;
}

}  // namespace

int main() {
  std::string json;
  std::getline(std::cin, json);
  const auto manifest = kvclient::parse_manifest(json, "standard input");
  std::vector<Layer> layers;
  auto done = manifest.ok() ? kvclient::check_manifest(*manifest) : manifest.error();
  if (done.ok()) done = pull_cache(*manifest, layers);
  if (!done.ok()) {
    std::cerr << done.error().to_string() << '\n';
    return 1;
  }
  for (const auto& layer : layers) {
    std::printf("%016lx\n", static_cast<unsigned long>(hash_of(*manifest, layer)));
  }
}
