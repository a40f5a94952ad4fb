// SPDX-License-Identifier: Apache-2.0
// As consumer.c, in C++, into tensors [heads, tokens, dim] of K and of V. The example of
// docs/kv-client.md.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <millrace/millrace_kv.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace {

namespace kv = millrace::kv;

constexpr int32_t kBlockTokens = 64;

struct Layer {
  std::vector<std::byte> k, v;
};

// [engine]
std::vector<Layer> pull_cache(kv::Client& client, const kv::Manifest& manifest) {
  const mkv_manifest_info& info = manifest.info();
  const int64_t row = int64_t{info.head_dim} * info.dtype_bytes;
  std::vector<int32_t> block_ids((info.num_tokens + kBlockTokens - 1) / kBlockTokens);
  std::iota(block_ids.begin(), block_ids.end(), 0);
  const int64_t head = std::ssize(block_ids) * kBlockTokens * row;

  std::vector<Layer> layers(info.num_layers);
  std::vector<mkv_layer_destination> destinations;
  for (auto& layer : layers) {
    layer.k.resize(info.num_kv_heads * head);
    layer.v.resize(layer.k.size());
    destinations.push_back({.k = layer.k.data(),
                            .v = layer.v.data(),
                            .block_stride = kBlockTokens * row,
                            .head_stride = head,
                            .token_stride = row});
  }
  kv::PullRequest request(manifest, kBlockTokens);
  request.to(block_ids, destinations).timeout_s = 60;

  kv::Pull pull = client.start(manifest, request);
  for (int32_t layer = 0; layer < info.num_layers; ++layer) {
    while (!pull.wait_layer(layer, kv::Seconds(0.1))) {
      // the engine does something else
    }
  }
  pull.wait();
  return layers;
}
// [engine]

uint64_t hash_of(const mkv_manifest_info& info, const Layer& layer) {
  const int64_t row = int64_t{info.head_dim} * info.dtype_bytes;
  const int64_t head = std::ssize(layer.k) / info.num_kv_heads;
  uint64_t hash = 14695981039346656037u;
  for (int64_t h = 0; h < info.num_kv_heads; ++h) {
    for (int64_t token = 0; token < info.num_tokens; ++token) {
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

// Parts of the header that the example leaves out: whatever comes otherwise must be the same.
void check_the_rest(kv::Client& client, const kv::Manifest& manifest) {
  const mkv_manifest_info& info = manifest.info();
  const kv::Manifest again(manifest.json());
  if (again.json() != manifest.json()) throw std::runtime_error("another manifest");
  const auto scores = client.scores(manifest, kv::Seconds(60));
  const double sum = std::accumulate(scores.begin(), scores.begin() + info.num_pages, 0.0);
  if (sum < 0.99 || sum > 1.01) throw std::runtime_error("scores do not sum to 1");
  std::vector<std::byte> bytes(info.page_bytes);
  const mkv_named_page page = {.layer = 0, .kv_head = 0, .page = 0, .to = bytes.data()};
  kv::PageRequest request;
  request.dtype = info.dtype;
  request.num_pages = 1;
  request.pages = &page;
  request.timeout_s = 60;
  if (!client.start(manifest, request).wait()) throw std::runtime_error("no page");
  try {
    kv::Manifest("no manifest");
    throw std::runtime_error("a manifest of nothing");
  } catch (const kv::Error& e) {
    if (e.status() != MKV_INVALID_ARGUMENT) throw;
  }
  kv::Feed feed;
  if (feed.wait_manifest(kv::Seconds(0))) throw std::runtime_error("a manifest without events");
}

}  // namespace

int main() {
  try {
    std::string json;
    std::getline(std::cin, json);
    const kv::Manifest manifest(json);
    kv::Client client;
    for (const auto& layer : pull_cache(client, manifest)) {
      std::printf("%016lx\n", static_cast<unsigned long>(hash_of(manifest.info(), layer)));
    }
    check_the_rest(client, manifest);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
