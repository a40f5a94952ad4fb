// SPDX-License-Identifier: Apache-2.0
// Pulls a cache over each path, from the host pools of ranks, which are processes of this machine,
// into this process. In the same run it moves as many bytes by plain copies.
//   kv_pull_bench --paths tcp,ucx-tcp --ranks 2 --threads 2
// Paths: tcp and tls use comm/tcp (tls needs --tls-cert and --tls-key, self-signed for 127.0.0.1);
// ucx-tcp and ucx-shm use comm/ucx; same-host copies from the ranks' memory. With --to-device 0 the
// blocks are in the memory of GPU 0. With --from-device 1 the ranks also have their pages in the
// memory of GPU 1, and the same-host path reads them there. Prints a line for each measurement: the
// median of the repeats. After each path, pages in the blocks are compared with what the ranks
// wrote. Takes three times the memory of the cache.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench/kvclient/copy_baselines.h"
#include "bench/kvclient/pull_memory.h"
#include "bench/kvclient/rank_process.h"
#include "comm/ucx/any_ucx.h"
#include "common/aligned_buffer.h"
#include "common/float8_array.h"
#include "common/log.h"
#include "common/system/cpu.h"
#include "kvclient/kv_client.h"
#include "kvclient/pull_client.h"

namespace millrace::bench {

namespace {

struct Options {
  std::vector<std::string> paths = {"tcp", "ucx-tcp", "ucx-shm", "same-host"};
  int ranks = 2;
  int threads = 0;
  int server_threads = 4;  // as a worker has
  int connections_per_rank = 0;
  int pages_per_request = 0;
  int32_t layers = 16;
  int32_t kv_heads = 8;
  int64_t tokens = 16384;
  int32_t block_tokens = 64;
  std::string layout = "hnd";
  int repeats = 5;
  int32_t to_device = kvclient::kHostMemory;
  std::vector<int> from_device;
  bool on_disk = false;
  bool baselines = true;
  bool one_call = false;
  std::string float8;  // "", "codes" or "decoded"
  TlsFiles tls;
};

constexpr int32_t kHeadDim = 128;

KvScales scales_of(const Options& options) {
  return options.float8.empty() ? KvScales()
                                : KvScales(static_cast<size_t>(options.layers), {0.5F, 0.25F});
}

// Bytes of a row at its destination.
int64_t row_bytes(const Options& options) {
  return kHeadDim * (options.float8 == "codes" ? 1 : 2);
}

// Bytes of all rows at their destination.
int64_t placed_bytes(const Options& options) {
  return 2 * options.layers * options.kv_heads * options.tokens * row_bytes(options);
}

std::string scheme_of(const std::string& path) {
  return path.starts_with("ucx") ? "ucx" : path == "tls" ? "tls" : "tcp";
}

int device_of(const Options& options, int rank) {
  if (options.from_device.empty()) return -1;
  return options.from_device[static_cast<size_t>(rank) % options.from_device.size()];
}

std::vector<std::unique_ptr<RankProcess>> start_ranks(const Options& options) {
  std::vector<std::unique_ptr<RankProcess>> ranks;
  const int32_t heads = options.kv_heads / options.ranks;
  RankSettings settings;
  settings.geometry.num_layers = options.layers;
  settings.geometry.num_kv_heads = heads;
  settings.geometry.head_dim = kHeadDim;
  settings.geometry.dtype = DType::kBFloat16;
  settings.num_tokens = options.tokens;
  settings.server_threads = options.server_threads;
  settings.on_disk = options.on_disk;
  settings.tls = options.tls;
  if (!options.float8.empty()) {
    settings.geometry.float8 = std::make_shared<const KvScales>(scales_of(options));
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    settings.geometry.first_kv_head = rank * heads;
    settings.from_device = device_of(options, rank);
    ranks.push_back(std::make_unique<RankProcess>(settings));
  }
  return ranks;
}

kvclient::Manifest manifest_of(const Options& options, const std::string& path,
                               const std::vector<std::unique_ptr<RankProcess>>& ranks) {
  kvclient::Manifest manifest;
  manifest.version = options.float8.empty() ? 1 : 3;
  manifest.request_id = "r";
  manifest.lease_id = "l";
  manifest.epoch = "e";
  manifest.num_tokens = options.tokens;
  manifest.layout.num_layers = options.layers;
  manifest.layout.num_kv_heads = options.kv_heads;
  manifest.layout.head_dim = kHeadDim;
  manifest.layout.page_tokens = 64;
  manifest.layout.dtype = options.float8.empty() ? "bfloat16" : kFloat8KvName;
  manifest.layout.scales = scales_of(options);
  manifest.layout.page_layout = "k-then-v";
  const int32_t heads = options.kv_heads / options.ranks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    kvclient::Shard shard;
    shard.rank = rank;
    shard.address = ranks[static_cast<size_t>(rank)]->address(scheme_of(path));
    shard.first_kv_head = rank * heads;
    shard.num_kv_heads = heads;
    shard.token_ranges = {{0, options.tokens}};
    manifest.shards.push_back(std::move(shard));
  }
  return manifest;
}

// Blocks of all layers: [layers][blocks, ...].
kvclient::PullRequest request_of(const Options& options, std::byte* memory) {
  const int64_t row = row_bytes(options);
  const int64_t blocks = options.tokens / options.block_tokens;
  const int64_t block = 2 * options.block_tokens * options.kv_heads * row;
  kvclient::PullRequest request{.num_kv_heads = options.kv_heads,
                                .dtype = DType::kBFloat16,
                                .head_dim = kHeadDim,
                                .block_tokens = options.block_tokens,
                                .num_tokens = options.tokens,
                                .block_ids = {},
                                .layers = {}};
  if (!options.float8.empty()) {
    request.float8 =
        options.float8 == "codes" ? kvclient::Float8Cache::kCodes : kvclient::Float8Cache::kDecoded;
  }
  // An order in which no two blocks follow each other.
  for (int64_t i = 0; i < blocks; ++i) {
    request.block_ids.push_back(static_cast<int32_t>(i % 2 == 0 ? i / 2 : blocks - 1 - i / 2));
  }
  for (int32_t layer = 0; layer < options.layers; ++layer) {
    auto* k = memory + layer * blocks * block;
    kvclient::LayerDestination to{
        .k = k, .v = nullptr, .block_stride = block, .head_stride = 0, .token_stride = 0};
    if (options.layout == "nhd") {  // [blocks, 2, tokens, heads, dim]
      to.v = k + block / 2;
      to.head_stride = row;
      to.token_stride = options.kv_heads * row;
    } else if (options.layout == "hnd") {  // [blocks, 2, heads, tokens, dim]
      to.v = k + block / 2;
      to.head_stride = options.block_tokens * row;
      to.token_stride = row;
    } else if (options.layout == "vllm") {  // [blocks, heads, tokens, 2 * dim]
      to.v = k + row;
      to.head_stride = options.block_tokens * 2 * row;
      to.token_stride = 2 * row;
    } else {  // [blocks, heads, 2, tokens, dim]: as pages travel
      to.v = k + options.block_tokens * row;
      to.head_stride = options.block_tokens * 2 * row;
      to.token_stride = row;
    }
    request.layers.push_back(to);
  }
  return request;
}

double own_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double report(const std::string& what, int64_t bytes, int repeats,
              const std::function<double()>& measure) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) seconds.push_back(measure());
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  fmt::print("{:<44} {:7.3f} s  {:6.2f} GB/s  ({:.3f} to {:.3f} s)\n", what, median,
             static_cast<double>(bytes) / median / 1e9, seconds.front(), seconds.back());
  std::fflush(stdout);
  return median;
}

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

double pull_once(kvclient::PullClient& client, const kvclient::Manifest& manifest,
                 const kvclient::PullRequest& request, kvclient::PullStats& stats) {
  const auto pull = must(client.start(manifest, request));
  const auto end = pull->wait(Deadline::after(std::chrono::minutes(5)));
  MR_CHECK(end && end->ok(), "{}", end ? end->error().to_string() : "late");
  stats = pull->stats();
  return stats.seconds;
}

// Pulls by the client of one call at a time, which has no blocks to put pages into.
double pull_synchronously(comm::Transport& transport, const kvclient::Manifest& manifest,
                          AlignedBuffer& memory) {
  const Stopwatch watch;
  kvclient::KvClient client(transport, manifest, {});
  const int64_t bytes = client.num_pages() * client.page_bytes();
  auto* to = memory.as<std::byte>();
  for (int32_t layer = 0; layer < manifest.layout.num_layers; ++layer) {
    for (int32_t head = 0; head < manifest.layout.num_kv_heads; ++head, to += bytes) {
      must(client.pull(layer, head, 0, client.num_pages(), {to, static_cast<size_t>(bytes)},
                       Deadline::after(std::chrono::minutes(5))));
    }
  }
  return watch.elapsed_s();
}

// One token's row, K or V, as it lies in the blocks.
std::span<const std::byte> row_in_blocks(const Options& options,
                                         const kvclient::PullRequest& request, int32_t layer,
                                         int32_t head, int64_t token, bool is_v) {
  const auto& to = request.layers[static_cast<size_t>(layer)];
  const auto block = request.block_ids[static_cast<size_t>(token / options.block_tokens)];
  const auto* row = (is_v ? to.v : to.k) + block * to.block_stride + head * to.head_stride +
                    token % options.block_tokens * to.token_stride;
  return {row, static_cast<size_t>(row_bytes(options))};
}

// Compares a few thousand pages, spread over the cache, row by row.
void check_blocks(const Options& options, const kvclient::PullRequest& request) {
  const int64_t pages = options.tokens / 64;
  const int64_t all = pages * options.layers * options.kv_heads;
  const int64_t step = std::max<int64_t>(1, all / 4096) | 1;  // odd: meets every head and layer
  const int64_t elements = int64_t{2} * 64 * kHeadDim;
  std::vector<std::byte> page_bytes(
      static_cast<size_t>(elements * (options.float8.empty() ? 2 : 1)));
  std::vector<std::byte> wanted(static_cast<size_t>(128 * row_bytes(options)));
  int64_t checked = 0;
  for (int64_t i = 0; i < all; i += step, ++checked) {
    const auto layer = static_cast<int32_t>(i / pages / options.kv_heads);
    const auto head = static_cast<int32_t>(i / pages % options.kv_heads);
    const int64_t page = i % pages;
    fill_page({layer, head, page}, page_bytes);
    if (options.float8 == "decoded") {
      const auto* codes = reinterpret_cast<const Float8*>(page_bytes.data());
      const auto scale = scales_of(options).of(0, 0);
      decode_float8(codes, elements / 2, scale.k, DType::kBFloat16, wanted.data());
      decode_float8(codes + elements / 2, elements / 2, scale.v, DType::kBFloat16,
                    wanted.data() + elements);
    } else {
      wanted = page_bytes;
    }
    for (int64_t row = 0; row < 128; ++row) {
      const auto found =
          row_in_blocks(options, request, layer, head, page * 64 + row % 64, row >= 64);
      const auto* expected = wanted.data() + row * row_bytes(options);
      MR_CHECK(std::equal(found.begin(), found.end(), expected),
               "layer {}, kv head {}, page {}: row {} is wrong", layer, head, page, row);
    }
  }
  fmt::print("  {} of {} pages compared byte by byte\n", checked, all);
}

void measure_baselines(const Options& options, int threads, int64_t bytes, std::byte* to) {
  {
    const CopySource source(bytes);
    for (const int n : {1, threads}) {
      report(fmt::format("memcpy between mappings, {} threads", n), bytes, options.repeats,
             [&] { return source.copy_s(to, n); });
    }
    report(fmt::format("XXH3, {} threads", threads), bytes, options.repeats,
           [&] { return source.checksum_s(threads); });
  }
  for (const int connections : std::set{threads, threads * options.ranks}) {
    report(fmt::format("plain TCP, {} connections", connections), bytes, options.repeats,
           [&] { return tcp_s(bytes, connections, to); });
  }
}

double cpu_of(const std::vector<std::unique_ptr<RankProcess>>& ranks) {
  double seconds = 0;
  for (const auto& rank : ranks) seconds += rank->cpu_s();
  return seconds;
}

std::string carried_by(const kvclient::PullStats& stats) {
  std::string text;
  for (const auto& [name, bytes] : stats.bytes_by_transport) {
    text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", name,
                        100.0 * static_cast<double>(bytes) / static_cast<double>(stats.bytes));
  }
  return text;
}

void measure_path(const Options& options, const std::string& path, int threads, int64_t bytes,
                  const std::vector<std::unique_ptr<RankProcess>>& ranks, AlignedBuffer& memory) {
  const auto manifest = manifest_of(options, path, ranks);
  comm::AnyTransport transport(comm::TcpOptions{.client_tls = {.ca = options.tls.certificate}});
  add_ucx(transport, {.transports = path == "ucx-shm" ? comm::UcxTransports::kSharedMemory
                                                      : comm::UcxTransports::kTcp});
  if (options.one_call) {
    report(fmt::format("{}: KvClient, one call at a time", path), bytes, options.repeats,
           [&] { return pull_synchronously(transport, manifest, memory); });
  }
  kvclient::PullClient client(transport, {.num_threads = threads,
                                          .connections_per_rank = options.connections_per_rank,
                                          .pages_per_request = options.pages_per_request,
                                          .same_host = path == "same-host"});
  std::optional<PullMemory> device;
  if (options.to_device != kvclient::kHostMemory)
    device.emplace(options.to_device, placed_bytes(options));
  auto request = request_of(options, device ? device->data() : memory.as<std::byte>());
  request.device = options.to_device;
  if (device) {
    report("plain copies from pinned memory to the GPU", bytes, options.repeats,
           [&] { return device->plain_copy_s(); });
    for (const int from : std::set(options.from_device.begin(), options.from_device.end())) {
      report(fmt::format("plain copy from the memory of GPU {}", from), bytes, options.repeats,
             [&] { return device->peer_copy_s(from); });
    }
  }
  std::fill_n(memory.as<std::byte>(), bytes, std::byte{1});
  kvclient::PullStats stats;
  report(fmt::format("{}: first pull, {} threads", path, threads), bytes, 1,
         [&] { return pull_once(client, manifest, request, stats); });
  const double ranks_cpu = cpu_of(ranks);
  const double own_cpu = own_cpu_s();
  report(fmt::format("{}: PullClient, {} threads", path, threads), bytes, options.repeats,
         [&] { return pull_once(client, manifest, request, stats); });
  fmt::print("  processor seconds a pull: client {:.3f}, ranks {:.3f}; bytes: {}\n",
             (own_cpu_s() - own_cpu) / options.repeats,
             (cpu_of(ranks) - ranks_cpu) / options.repeats, carried_by(stats));
  if (device) device->copy_to_host(memory.as<std::byte>());
  check_blocks(options, request_of(options, memory.as<std::byte>()));
}

void run(const Options& options) {
  const auto ranks = start_ranks(options);
  const auto manifest = manifest_of(options, "tcp", ranks);
  const int64_t bytes =
      manifest.num_pages() * manifest.page_bytes() * options.layers * options.kv_heads;
  fmt::print("{} ranks, {} layers, {} kv heads, {} tokens, {}{}: {:.3f} GB; {} blocks of {}\n",
             options.ranks, options.layers, options.kv_heads, options.tokens, manifest.layout.dtype,
             options.float8 == "decoded" ? " to bfloat16" : "", static_cast<double>(bytes) / 1e9,
             options.layout, options.block_tokens);
  AlignedBuffer memory(placed_bytes(options));
  std::fill_n(memory.as<std::byte>(), placed_bytes(options), std::byte{1});
  const int threads = options.threads > 0 ? options.threads : std::clamp(usable_cores(), 2, 8);
  if (options.baselines) measure_baselines(options, threads, bytes, memory.as<std::byte>());
  for (const auto& path : options.paths) {
    measure_path(options, path, threads, bytes, ranks, memory);
  }
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app("Pulls a cache from rank processes of this machine, beside plain copies.");
  app.add_option("--paths", options.paths,
                 "of tcp, tls, ucx-tcp, ucx-shm and same-host, with commas between")
      ->delimiter(',');
  app.add_option("--float8", options.float8,
                 "a cache in 8-bit floats: codes, or decoded to bfloat16")
      ->check(CLI::IsMember({"codes", "decoded"}));
  app.add_option("--ranks", options.ranks, "rank processes; they share the kv heads");
  app.add_option("--threads", options.threads, "of the client; 0: its default");
  app.add_option("--server-threads", options.server_threads, "of each rank");
  app.add_option("--connections-per-rank", options.connections_per_rank, "0: no limit");
  app.add_option("--pages-per-request", options.pages_per_request, "0: the client's default");
  app.add_option("--layers", options.layers, "of the cache");
  app.add_option("--kv-heads", options.kv_heads, "of the cache");
  app.add_option("--tokens", options.tokens, "of the cache");
  app.add_option("--block-tokens", options.block_tokens, "of the destination");
  app.add_option("--layout", options.layout, "hnd, nhd, vllm or pages");
  app.add_option("--repeats", options.repeats, "of each measurement");
  app.add_option("--to-device", options.to_device, "into the memory of this GPU")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--from-device", options.from_device,
                 "the ranks' device pools are in the memory of this GPU, or of these in turn")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  app.add_option("--tls-cert", options.tls.certificate, "of the ranks, for the path tls");
  app.add_option("--tls-key", options.tls.key, "its key");
  app.add_flag("--on-disk", options.on_disk, "pages in the disk tier");
  app.add_flag("!--no-baselines", options.baselines, "the pulls alone");
  app.add_flag("--one-call", options.one_call, "also the client of one call at a time");
  CLI11_PARSE(app, argc, argv);
  millrace::log::set_level(millrace::log::Level::kWarn);
  millrace::bench::run(options);
}
