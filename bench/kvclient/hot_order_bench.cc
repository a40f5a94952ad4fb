// SPDX-License-Identifier: Apache-2.0
// When the pages that carry most of the attention reach the client. Pulls one cache by position and
// in order of criticality, in turn.
//   hot_order_bench --manifest response.json [--share 0.95] [--transport shm] [--threads 2]
// The mass of a page is its score. Times and bytes are taken where pages arrive, outside the
// client. Prints a JSON object with the medians over the repeats.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <vector>

#include "bench/kvclient/recording_transport.h"
#include "bench/kvclient/whole_cache.h"
#include "comm/ucx/any_ucx.h"
#include "common/aligned_buffer.h"
#include "common/check.h"
#include "common/log.h"
#include "kvclient/kv_client.h"
#include "kvclient/pull_client.h"

namespace millrace::bench {

namespace {

namespace json = boost::json;

struct Options {
  std::string manifest;
  std::string transport = "shm";
  double share = 0.95;
  int threads = 2;
  int repeats = 7;
};

// The course of one pull.
struct Timeline {
  double scores_s = 0;          // until the last scores arrived
  double every_head_s = 0;      // until each layer and kv head had `share` of its mass
  double every_head_bytes = 0;  // share of the cache that had arrived by then
  double mean_s = 0;            // until the mean over layers and kv heads reached `share`
  double mean_bytes = 0;
  double all_s = 0;
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

comm::UcxTransports transports_of(const std::string& name) {
  for (const auto& [known, value] : comm::ucx_transport_names()) {
    if (known == name) return value;
  }
  return comm::UcxTransports::kAuto;
}

std::vector<int64_t> pages_of(const protocol::PageRequest& request) {
  std::vector<int64_t> pages(request.pages().begin(), request.pages().end());
  for (uint32_t i = 0; i < request.num_pages(); ++i) {
    pages.push_back(static_cast<int64_t>(request.first_page() + i));
  }
  return pages;
}

// `scores`: [layers, kv heads, pages].
Timeline timeline_of(std::vector<PageArrival> arrivals, TimePoint began,
                     const kvclient::Manifest& manifest, const std::vector<float>& scores,
                     double share) {
  std::sort(arrivals.begin(), arrivals.end(),
            [](const auto& a, const auto& b) { return a.when < b.when; });
  const int64_t num_pages = manifest.num_pages();
  const auto num_rows = static_cast<size_t>(manifest.layout.num_layers) *
                        static_cast<size_t>(manifest.layout.num_kv_heads);
  std::vector<double> total(num_rows), there(num_rows);
  for (size_t i = 0; i < scores.size(); ++i) total[i / static_cast<size_t>(num_pages)] += scores[i];
  const auto all_pages = static_cast<double>(scores.size());
  Timeline line;
  double pages_there = 0, mean = 0;
  size_t rows_done = 0;
  for (const auto& arrival : arrivals) {
    const double now = seconds(arrival.when - began);
    if (arrival.request.has_scores()) {
      line.scores_s = now;
      continue;
    }
    const auto row = static_cast<size_t>(arrival.request.layer()) *
                         static_cast<size_t>(manifest.layout.num_kv_heads) +
                     arrival.request.kv_head();
    const bool had = there[row] >= share * total[row];
    for (const int64_t page : pages_of(arrival.request)) {
      const double score = scores[row * static_cast<size_t>(num_pages) + static_cast<size_t>(page)];
      there[row] += score;
      mean += score / total[row] / static_cast<double>(num_rows);
      ++pages_there;
    }
    // Sums of a thousand floats, added in another order.
    constexpr double kRounding = 1e-9;
    if (!had && there[row] >= share * total[row] - kRounding && ++rows_done == num_rows) {
      line.every_head_s = now;
      line.every_head_bytes = pages_there / all_pages;
    }
    if (line.mean_s == 0 && mean >= share - kRounding) {
      line.mean_s = now;
      line.mean_bytes = pages_there / all_pages;
    }
    line.all_s = now;
  }
  MR_CHECK(rows_done == num_rows, "{} of {} heads got their mass", rows_done, num_rows);
  return line;
}

double median(const std::vector<Timeline>& lines, double Timeline::*field) {
  std::vector<double> values;
  for (const auto& line : lines) values.push_back(line.*field);
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

json::object to_json(const std::vector<Timeline>& lines) {
  return {{"scores_s", median(lines, &Timeline::scores_s)},
          {"every_head_s", median(lines, &Timeline::every_head_s)},
          {"every_head_share_of_bytes", median(lines, &Timeline::every_head_bytes)},
          {"mean_s", median(lines, &Timeline::mean_s)},
          {"mean_share_of_bytes", median(lines, &Timeline::mean_bytes)},
          {"all_s", median(lines, &Timeline::all_s)}};
}

void run(const Options& options) {
  const auto manifest = must(kvclient::read_manifest(options.manifest));
  MR_CHECK(kvclient::check_manifest(manifest).ok(), "the manifest is not one");
  comm::AnyTransport any(comm::TcpOptions{});
  add_ucx(any, {.transports = transports_of(options.transport)});
  RecordingTransport transport(any);
  const auto ample = [] { return Deadline::after(std::chrono::minutes(5)); };
  const auto& layout = manifest.layout;
  const auto scores = must(kvclient::KvClient(any, manifest, {})
                               .pull_scores(0, layout.num_layers, 0, layout.num_kv_heads, ample()));
  const int64_t bytes = cache_bytes(manifest);
  AlignedBuffer memory(bytes);
  std::fill_n(memory.as<std::byte>(), bytes, std::byte{1});
  std::map<kvclient::PullOrder, std::vector<Timeline>> lines;
  {
    // Copies from a rank's memory would bypass the transport that records arrivals.
    kvclient::PullClient client(transport, {.num_threads = options.threads, .same_host = false});
    // The first pull, which does not count, sets up the connections.
    for (int repeat = -1; repeat < options.repeats; ++repeat) {
      for (const auto order : {kvclient::PullOrder::kPosition, kvclient::PullOrder::kCriticality}) {
        auto request = whole_cache(manifest, memory.as<std::byte>());
        request.order = order;
        request.hot_share = options.share;
        transport.take();
        const auto began = Clock::steady().now();
        const auto pull = must(client.start(manifest, std::move(request)));
        const auto end = pull->wait(ample());
        MR_CHECK(end && end->ok(), "{}", end ? end->error().to_string() : "late");
        const auto line = timeline_of(transport.take(), began, manifest, scores, options.share);
        if (repeat >= 0) lines[order].push_back(line);
      }
    }
  }
  fmt::print("{}\n", json::serialize(json::object{
                         {"tokens", manifest.num_tokens},
                         {"cache_bytes", bytes},
                         {"score_bytes", scores.size() * sizeof(float)},
                         {"share", options.share},
                         {"position", to_json(lines[kvclient::PullOrder::kPosition])},
                         {"criticality", to_json(lines[kvclient::PullOrder::kCriticality])}}));
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app("When the pages that carry most attention are at the client.");
  app.add_option("--manifest", options.manifest)->required();
  app.add_option("--transport", options.transport);
  app.add_option("--share", options.share);
  app.add_option("--threads", options.threads);
  app.add_option("--repeats", options.repeats);
  CLI11_PARSE(app, argc, argv);
  millrace::log::set_level(millrace::log::Level::kWarn);
  millrace::bench::run(options);
  return 0;
}
