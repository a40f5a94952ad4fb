// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kvclient/fake_ranks.h"

#include <algorithm>
#include <numeric>

#include "common/checksum.h"
#include "common/errc_wire.h"
#include "common/units.h"
#include "tests/support/random_data.h"

namespace millrace::test {

namespace {

constexpr int64_t kPageTokens = 64;
constexpr int64_t kStripe = 2 * kPageTokens;

}  // namespace

FakeRanks::FakeRanks(comm::Transport& transport, const Options& options, Hook hook)
    : options_(options), hook_(std::move(hook)) {
  manifest_.version = 1;
  manifest_.model = "fake";
  manifest_.request_id = "prompt-1";
  manifest_.num_tokens = options.num_tokens;
  manifest_.layout.num_layers = options.num_layers;
  manifest_.layout.num_kv_heads = options.num_kv_heads;
  manifest_.layout.head_dim = options.head_dim;
  manifest_.layout.page_tokens = kPageTokens;
  manifest_.layout.dtype = dtype_name(options.dtype);
  manifest_.layout.page_layout = "k-then-v";
  manifest_.first_token_id = 7;
  manifest_.top_logprobs = {{.token_id = 7, .logprob = -0.5f, .logit = 3}};
  manifest_.lease_id = "lease-1";
  manifest_.epoch = "epoch-1";
  manifest_.lease_ms = 60000;
  manifest_.tiers = {{.tier = "device", .pages = 1, .bytes = 1}};
  manifest_.tp = options.tp;
  manifest_.cp = options.cp;
  const int32_t heads = options.num_kv_heads / options.tp;
  for (int rank = 0; rank < options.tp * options.cp; ++rank) {
    auto server = transport.listen(
        "127.0.0.1", 0, [this, rank](std::string_view header) { return answer(rank, header); });
    MR_CHECK(server.ok(), "{}", server.error().to_string());
    kvclient::Shard shard{.rank = rank,
                          .address = (*server)->address(),
                          .first_kv_head = heads * (rank % options.tp),
                          .num_kv_heads = heads,
                          .token_ranges = {}};
    for (int64_t begin = kStripe * (rank / options.tp); begin < options.num_tokens;
         begin += kStripe * options.cp) {
      shard.token_ranges.push_back({begin, std::min(begin + kStripe, options.num_tokens)});
    }
    servers_.push_back(std::move(*server));
    if (!shard.token_ranges.empty()) manifest_.shards.push_back(std::move(shard));
  }
}

std::vector<std::byte> FakeRanks::page(int32_t layer, int32_t kv_head, int64_t page) const {
  const int64_t row = options_.head_dim * dtype_bytes(options_.dtype);
  const int64_t rows = std::min(kPageTokens, options_.num_tokens - page * kPageTokens);
  std::vector<std::byte> bytes(static_cast<size_t>(2 * kPageTokens * row));
  const auto seed = static_cast<uint64_t>((int64_t{layer} * 1000 + kv_head) * 1000 + page);
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t i = 0; i < rows * row; ++i) {
      const auto at = half * kPageTokens * row + i;
      bytes[static_cast<size_t>(at)] =
          static_cast<std::byte>(random_bits(seed, static_cast<uint64_t>(at)));
    }
  }
  return bytes;
}

std::vector<float> FakeRanks::scores(int32_t layer, int32_t kv_head) const {
  std::vector<float> scores(static_cast<size_t>(manifest_.num_pages()));
  for (size_t page = 0; page < scores.size(); ++page) {
    const auto seed = static_cast<uint64_t>(layer * 1000 + kv_head);
    scores[page] = random_bits(seed, page) % 4 == 0 ? 100.0f : 1.0f;
    scores[page] += static_cast<float>(random_bits(seed + 500, page) % 100) / 1000;
  }
  const float sum = std::accumulate(scores.begin(), scores.end(), 0.0f);
  for (float& score : scores) score /= sum;
  if (options_.first_score) scores.front() = *options_.first_score;
  return scores;
}

std::vector<float> FakeRanks::digest(int32_t layer, int32_t kv_head, int64_t page) const {
  return std::vector<float>(3 * static_cast<size_t>(options_.head_dim),
                            static_cast<float>((layer * 1000 + kv_head) * 1000 + page));
}

comm::TransportReply FakeRanks::answer_scores(int rank,
                                              const protocol::PageRequest& request) const {
  const auto shard =
      std::find_if(manifest_.shards.begin(), manifest_.shards.end(),
                   [rank](const kvclient::Shard& candidate) { return candidate.rank == rank; });
  auto kept = std::make_shared<std::vector<float>>();
  for (uint32_t l = 0; l < request.scores().num_layers(); ++l) {
    for (uint32_t h = 0; h < request.scores().num_kv_heads(); ++h) {
      const auto all = scores(static_cast<int32_t>(request.layer() + l),
                              static_cast<int32_t>(request.kv_head() + h));
      for (const auto& range : shard->token_ranges) {
        for (int64_t page = range.begin / kPageTokens; page * kPageTokens < range.end; ++page) {
          kept->push_back(all[static_cast<size_t>(page)]);
        }
      }
    }
  }
  return {.header = protocol::PageReply().SerializeAsString(),
          .payload = {.pieces = {std::as_bytes(std::span(*kept))}, .keep_alive = kept}};
}

comm::TransportReply FakeRanks::answer(int rank, std::string_view header) {
  ++num_requests_;
  protocol::PageRequest request;
  MR_CHECK(request.ParseFromArray(header.data(), static_cast<int>(header.size())),
           "not a page request");
  protocol::PageReply reply;
  comm::TransportReply out;
  if (const auto hooked = hook_ ? hook_(request) : Result<void>(); !hooked.ok()) {
    reply.mutable_error()->set_code(errc_to_wire(hooked.error().code));
    reply.mutable_error()->set_message(hooked.error().message);
    return {.header = reply.SerializeAsString(), .payload = {}};
  }
  if (request.has_scores()) return answer_scores(rank, request);
  std::vector<uint64_t> numbers(request.pages().begin(), request.pages().end());
  for (uint64_t i = 0; i < request.num_pages(); ++i) numbers.push_back(request.first_page() + i);
  auto pages = std::make_shared<std::vector<std::vector<std::byte>>>();
  for (const uint64_t number : numbers) {
    const auto layer = static_cast<int32_t>(request.layer());
    const auto head = static_cast<int32_t>(request.kv_head());
    pages->push_back(page(layer, head, static_cast<int64_t>(number)));
    if (request.digests_only()) {
      const auto floats = digest(layer, head, static_cast<int64_t>(number));
      const auto bytes = std::as_bytes(std::span(floats));
      pages->back().assign(bytes.begin(), bytes.end());
    }
    auto& info = *reply.add_pages();
    info.set_checksum(checksum(std::span<const std::byte>(pages->back())));
    info.set_tier(1);
    if (number == numbers.back() && options_.spoiled && options_.spoiled(request)) {
      pages->back().back() ^= std::byte{1};
    }
    out.payload.pieces.emplace_back(pages->back());
  }
  reply.set_same_host_socket(options_.same_host_socket);
  out.header = reply.SerializeAsString();
  out.payload.keep_alive = std::move(pages);
  return out;
}

}  // namespace millrace::test
