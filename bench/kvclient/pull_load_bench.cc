// SPDX-License-Identifier: Apache-2.0
// Pulls several caches at the same time, over and over, as a busy decode node would: a load for
// prefills to run against.
//   pull_load_bench --response r1.json r2.json ... [--threads 8] [--no-same-host]
// Prints "ready" after the first round. When its standard input ends, it stops pulling and prints a
// JSON object. Exit status 1: a pull failed.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/kvclient/whole_cache.h"
#include "comm/any/any_transport.h"
#include "common/aligned_buffer.h"
#include "common/check.h"
#include "common/log.h"
#include "kvclient/kv_client.h"
#include "kvclient/pull_client.h"

namespace millrace::bench {

namespace {

constexpr std::chrono::minutes kLimit{5};

struct Options {
  std::vector<std::string> responses;
  int threads = 0;
  bool same_host = true;
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

// One cache, its memory, and the pull in progress.
struct Target {
  std::shared_ptr<const kvclient::Manifest> manifest;
  std::unique_ptr<AlignedBuffer> memory;
  std::unique_ptr<kvclient::Pull> pull;
};

bool input_ended() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  char byte = 0;
  return ::poll(&input, 1, 0) > 0 && ::read(STDIN_FILENO, &byte, 1) <= 0;
}

class PullLoad {
 public:
  explicit PullLoad(const Options& options)
      : client_(transport_, {.num_threads = options.threads, .same_host = options.same_host}) {
    for (const auto& path : options.responses) {
      const auto manifest = must(kvclient::read_manifest(path));
      MR_CHECK(kvclient::check_manifest(manifest).ok(), "{} is no manifest", path);
      Target target{.manifest = std::make_shared<const kvclient::Manifest>(manifest),
                    .memory = std::make_unique<AlignedBuffer>(cache_bytes(manifest)),
                    .pull = {}};
      std::fill_n(target.memory->as<std::byte>(), cache_bytes(manifest), std::byte{1});
      targets_.push_back(std::move(target));
    }
  }

  // Pulls all caches again, each as soon as its last pull has ended.
  void run() {
    for (Target& target : targets_) {
      finish(target);
      target.pull = must(client_.start(
          target.manifest, whole_cache(*target.manifest, target.memory->as<std::byte>())));
    }
  }
  void finish() {
    for (Target& target : targets_) finish(target);
  }
  void reset() {
    bytes_ = num_pulls_ = 0;
    carriers_.clear();
    watch_ = Stopwatch();
  }

  boost::json::object to_json() const {
    boost::json::object carriers;
    for (const auto& [name, bytes] : carriers_) carriers[name] = bytes;
    return {{"pulls", num_pulls_},
            {"bytes", bytes_},
            {"seconds", watch_.elapsed_s()},
            {"slowest_pull_s", slowest_s_},
            {"bytes_by_transport", std::move(carriers)}};
  }

 private:
  void finish(Target& target) {
    if (!target.pull) return;
    const auto end = target.pull->wait(Deadline::after(kLimit));
    MR_CHECK(end && end->ok(), "{}", end ? end->error().to_string() : "late");
    const auto stats = target.pull->stats();
    bytes_ += stats.bytes;
    ++num_pulls_;
    slowest_s_ = std::max(slowest_s_, stats.seconds);
    for (const auto& [name, bytes] : stats.bytes_by_transport) carriers_[name] += bytes;
    target.pull.reset();
  }

  comm::AnyTransport transport_{comm::TcpOptions{}};
  kvclient::PullClient client_;
  std::vector<Target> targets_;
  Stopwatch watch_;
  int64_t bytes_ = 0;
  int64_t num_pulls_ = 0;
  double slowest_s_ = 0;
  std::map<std::string, int64_t> carriers_;
};

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app("Pulls caches over and over, all of them at a time.");
  app.add_option("--response", options.responses, "of prefills, whose leases last")->required();
  app.add_option("--threads", options.threads, "of the client; 0: its default");
  app.add_flag("!--no-same-host", options.same_host, "over the transport, on one host too");
  CLI11_PARSE(app, argc, argv);
  millrace::log::set_level(millrace::log::Level::kWarn);
  millrace::bench::PullLoad load(options);
  load.run();
  load.finish();
  load.reset();
  fmt::print("ready\n");
  std::fflush(stdout);
  while (!millrace::bench::input_ended()) load.run();
  load.finish();
  fmt::print("{}\n", boost::json::serialize(load.to_json()));
  return 0;
}
