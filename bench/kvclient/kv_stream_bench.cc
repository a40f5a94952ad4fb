// SPDX-License-Identifier: Apache-2.0
// Follows a prefill by the events on its standard input. Pulls each layer as soon as it is
// announced, into memory of the host or of a GPU.
//   curl -sN .../v1/prefill/ID/events | kv_stream_bench --to-device 1
// Prints "ready" once it has a client, and then a JSON object. Times are in seconds of the system's
// clock, so that another process can compare them with its own. Exit status 1: the pull failed.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <optional>

#include "bench/kvclient/pull_memory.h"
#include "bench/kvclient/whole_cache.h"
#include "comm/ucx/any_ucx.h"
#include "common/aligned_buffer.h"
#include "common/check.h"
#include "common/log.h"
#include "kvclient/handover/event_reader.h"
#include "kvclient/pull_client.h"

namespace millrace::bench {

namespace {

struct Options {
  int32_t to_device = kvclient::kHostMemory;
  int threads = 0;
  int64_t bytes = 0;  // memory to allocate before the prefill begins
};

constexpr std::chrono::minutes kLimit{10};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

double system_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int run(const Options& options) {
  std::optional<PullMemory> device;
  std::optional<AlignedBuffer> host;
  if (options.to_device != kvclient::kHostMemory) {
    device.emplace(options.to_device, options.bytes);
  } else {
    host.emplace(options.bytes);
    std::fill_n(host->as<std::byte>(), options.bytes, std::byte{1});
  }
  comm::AnyTransport transport(comm::TcpOptions{});
  add_ucx(transport, {});
  const auto feed = std::make_shared<kvclient::HandoverFeed>();
  kvclient::PullClient client(transport, {.num_threads = options.threads});
  fmt::print("ready\n");
  std::fflush(stdout);
  const auto reader = must(kvclient::EventReader::start(STDIN_FILENO, *feed));
  const auto manifest = must(feed->wait_for_manifest(Deadline::after(kLimit)));
  const int64_t needed = cache_bytes(manifest);
  MR_CHECK(needed <= options.bytes, "--bytes must be {} or more", needed);
  auto request = whole_cache(manifest, device ? device->data() : host->as<std::byte>());
  request.device = options.to_device;
  request.timeout = kLimit;
  request.feed = feed;
  const auto pull = must(client.start(manifest, std::move(request)));
  const auto end = pull->wait(Deadline::after(kLimit));
  const double ended = system_s();
  const auto progress = pull->progress();
  boost::json::object by_transport;
  for (const auto& [name, bytes] : progress.stats.bytes_by_transport) by_transport[name] = bytes;
  const boost::json::object line{{"request_id", manifest.request_id},
                                 {"error", end && end->ok() ? ""
                                           : end            ? end->error().to_string()
                                                            : "late"},
                                 {"bytes", progress.stats.bytes},
                                 {"bytes_by_transport", std::move(by_transport)},
                                 {"pull_s", progress.stats.seconds},
                                 {"waiting_s", progress.waiting_s},
                                 {"corrupt_pages", progress.stats.corrupt_pages},
                                 {"last_page_at", ended}};
  fmt::print("{}\n", boost::json::serialize(line));
  return end && end->ok() ? 0 : 1;
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app("Pulls the cache of a prefill that its events tell of.");
  app.add_option("--to-device", options.to_device, "into the memory of this GPU; else the host's")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--threads", options.threads, "of the client; 0: its default");
  app.add_option("--bytes", options.bytes, "of memory for the cache")->required();
  CLI11_PARSE(app, argc, argv);
  millrace::log::set_level(millrace::log::Level::kWarn);
  return millrace::bench::run(options);
}
