// SPDX-License-Identifier: Apache-2.0
// One client pulls payloads from one server on the same host, one call at a time. Measures bytes
// per second for each transport, payload size and number of pieces. A piece of 32 KiB is a KV page
// of 64 tokens and 128 channels, K and V, in 16 bits. The server is a thread of this process; two
// processes would use the same lanes.
#include <benchmark/benchmark.h>

#include <charconv>
#include <chrono>
#include <vector>

#include "comm/local/local_transport.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/ucx/ucx_transport.h"

namespace {

using namespace millrace;
using namespace millrace::comm;

constexpr int64_t kPieceBytes = 32 << 10;
constexpr int64_t kMaxBytes = 16 << 20;

enum class Pieces { kOne, kPages };

TransportReply reply_of(std::string_view request, Pieces pieces,
                        const std::shared_ptr<std::vector<std::byte>>& pool) {
  int64_t num_bytes = 0;
  std::from_chars(request.data(), request.data() + request.size(), num_bytes);
  TransportReply reply{.header = {}, .payload = {.pieces = {}, .keep_alive = pool}};
  std::span<const std::byte> rest = std::span(*pool).first(static_cast<size_t>(num_bytes));
  const size_t piece = pieces == Pieces::kOne ? rest.size() : static_cast<size_t>(kPieceBytes);
  for (; !rest.empty(); rest = rest.subspan(std::min(piece, rest.size()))) {
    reply.payload.pieces.push_back(rest.first(std::min(piece, rest.size())));
  }
  return reply;
}

std::unique_ptr<Transport> make(std::string_view name) {
  if (name == "local") return std::make_unique<LocalTransport>();
  if (name == "tcp") return std::make_unique<TcpTransport>(TcpOptions{});
  const auto transports = name == "ucx-shm" ? UcxTransports::kSharedMemory : UcxTransports::kTcp;
  return std::move(UcxTransport::create({.transports = transports})).value();
}

void pull(benchmark::State& state, const char* name, Pieces pieces) {
  const auto transport = make(name);
  const auto pool = std::make_shared<std::vector<std::byte>>(kMaxBytes);
  for (size_t i = 0; i < pool->size(); ++i) (*pool)[i] = static_cast<std::byte>(i * 7 + (i >> 8));
  auto server = transport->listen(
      "127.0.0.1", 0, [&](std::string_view request) { return reply_of(request, pieces, pool); });
  const auto minute = Deadline::after(std::chrono::minutes(1));
  auto connection = transport->connect((*server)->address(), minute);

  std::vector<std::byte> destination(static_cast<size_t>(state.range(0)));
  const std::string request = std::to_string(state.range(0));
  for (auto _ : state) {
    auto reply =
        (*connection)->call(request, destination, Deadline::after(std::chrono::minutes(1)));
    if (!reply.ok()) return state.SkipWithError(reply.error().to_string().c_str());
  }
  if (!std::equal(destination.begin(), destination.end(), pool->begin())) {
    return state.SkipWithError("wrong bytes");
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK_CAPTURE(pull, local_one, "local", Pieces::kOne)
    ->RangeMultiplier(4)
    ->Range(65536, kMaxBytes)
    ->UseRealTime();
BENCHMARK_CAPTURE(pull, tcp_one, "tcp", Pieces::kOne)
    ->RangeMultiplier(4)
    ->Range(65536, kMaxBytes)
    ->UseRealTime();
BENCHMARK_CAPTURE(pull, tcp_pages, "tcp", Pieces::kPages)
    ->RangeMultiplier(4)
    ->Range(65536, kMaxBytes)
    ->UseRealTime();
BENCHMARK_CAPTURE(pull, ucx_tcp_one, "ucx-tcp", Pieces::kOne)
    ->RangeMultiplier(4)
    ->Range(65536, kMaxBytes)
    ->UseRealTime();
BENCHMARK_CAPTURE(pull, ucx_tcp_pages, "ucx-tcp", Pieces::kPages)
    ->RangeMultiplier(4)
    ->Range(65536, kMaxBytes)
    ->UseRealTime();
BENCHMARK_CAPTURE(pull, ucx_shm_one, "ucx-shm", Pieces::kOne)
    ->RangeMultiplier(4)
    ->Range(65536, kMaxBytes)
    ->UseRealTime();
BENCHMARK_CAPTURE(pull, ucx_shm_pages, "ucx-shm", Pieces::kPages)
    ->RangeMultiplier(4)
    ->Range(65536, kMaxBytes)
    ->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
