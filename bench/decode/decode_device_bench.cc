// SPDX-License-Identifier: Apache-2.0
// Decode steps of one GPU over a cache that it has prefilled itself: dense; progressive with all
// pages in device memory; and progressive with slots for only a share of the pages, with and
// without foresight.
//   decode_device_bench --model synthetic:llama-3-8b --device cuda [--tokens 131072] [--share 0.25]
//     [--mass 0.98] [--steps 64] [--needle]
// No ranks and no network: pages lie in page-locked host memory. Dense decoding chooses the tokens,
// and the other runs decode the same tokens. With --clustered there is no prefill: the keys are
// made up, and the first run chooses the tokens. Prints a line of JSON for each run. A run's step
// time is the median of its steps without the warm-up.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "comm/local/local_group.h"
#include "common/page_tokens.h"
#include "common/system/cpu.h"
#include "common/units.h"
#include "decode/device_prompt.h"
#include "engine/ranks/rank_end.h"
#include "engine/runtime/rank_cli.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_device_pages.h"
#include "model/generator.h"
#include "model/synthetic/synthetic_model.h"
#include "plan/head_plan.h"
#include "plan/plan_for_length.h"
#include "tests/support/needle_prompt.h"
#include "tests/support/random_data.h"
#include "worker/sinks/retain_sink.h"

namespace millrace::bench {

namespace {

namespace json = boost::json;

constexpr auto kTimeout = std::chrono::minutes(5);

struct Options {
  engine::RankOptions rank;
  std::string plan = "adaptive";
  int64_t tokens = 131072;
  int32_t steps = 64, warm_up = 24;
  std::vector<double> masses = {0.98};
  std::vector<double> shares = {0.25};
  bool needle = false;
  std::vector<double> clustered;
  uint64_t seed = 1;
};

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}
void must(const Result<void>& result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
}

class Bench {
 public:
  Bench(engine::RankRuntime& runtime, const Options& options)
      : runtime_(runtime), options_(options), device_(runtime.device()) {}

  void run() {
    const auto& config = runtime_.weights().config;
    prompt_ =
        options_.needle
            ? testing::make_needle_prompt({.tokens = options_.tokens, .records = 64, .queries = 64})
                  .token_ids
            : model::synthetic_prompt(config, options_.tokens, options_.seed);
    shape_ = decode::device_pages_shape(runtime_.weights(), std::ssize(prompt_));
    if (!options_.clustered.empty()) {
      for (const double distance : options_.clustered) {
        make_clustered_pages(static_cast<float>(distance));
        measure_all();
      }
      return;
    }
    prefill();
    measure_all();
  }

 private:
  void measure_all() {
    for (const double mass : options_.masses) {
      for (const double share : shares()) {
        for (const bool foresee : share == 1 ? std::vector{false} : std::vector{false, true}) {
          measure(mass, share, foresee);
        }
      }
    }
    // Repeats the first measurement, to show how much a step's time varies.
    measure(options_.masses.front(), 1, false);
  }

  std::vector<double> shares() const {
    std::vector<double> all = {1};
    all.insert(all.end(), options_.shares.begin(), options_.shares.end());
    return all;
  }

  void prefill() {
    const auto& weights = runtime_.weights();
    auto plan = plan::plan_for_length(
        must(plan::make_head_plan(options_.plan, weights.config, std::ssize(prompt_),
                                  runtime_.crossover_tokens())),
        std::ssize(prompt_), device_.info().sparse_cost);
    auto sink = must(worker::RetainSink::create(device_, weights, std::ssize(prompt_)));
    Stopwatch watch;
    const auto result = must(
        runtime_.engine().prefill({.token_ids = prompt_, .plan = &plan, .sink = &sink}, kTimeout));
    first_token_ = result.first_token;
    const double prefill_s = watch.elapsed_s();
    reference_ = generate("dense", {.prompt = sink.slabs()}, {{"prefill_s", prefill_s}});
    Stopwatch copy;
    take_pages(sink.slabs());
    fmt::print(stderr, "pages and digests copied in {:.2f} s\n", copy.elapsed_s());
  }

  // Replaces a prefill. Each page has a centre at `distance` in each dimension, and its keys lie
  // half as far around it; values are noise. Digests tell such pages apart. Queries are the model's
  // own.
  void make_clustered_pages(float distance) {
    reference_.clear();
    first_token_ = prompt_.back();
    const int64_t pages = shape_.num_pages(), dim = shape_.head_dim;
    if (host_.bytes() == 0) {
      host_ = must(device_.allocate_host(shape_.all_pages() * shape_.page_bytes()));
    }
    digests_.resize(static_cast<size_t>(shape_.all_pages() * 3 * dim));
    const auto noise = test::random_normals(1, int64_t{1} << 20);
    MR_CHECK(shape_.dtype == DType::kBFloat16 && shape_.num_tokens % kPageTokens == 0,
             "clustered pages are whole and of bfloat16");
    const auto make = [&](int64_t page) {
      const auto window = [&](uint64_t number, int64_t size) {
        const uint64_t mixed = (static_cast<uint64_t>(page) * 4 + number + 1) * 0x9e3779b97f4a7c15;
        return noise.data() + mixed % static_cast<uint64_t>(std::ssize(noise) - size);
      };
      const float* const centre = window(0, dim);
      const float* const keys = window(1, kPageTokens * dim);
      const float* const values = window(2, kPageTokens * dim);
      auto* const k =
          reinterpret_cast<uint16_t*>(host_.as<std::byte>() + page * shape_.page_bytes());
      uint16_t* const v = k + kPageTokens * dim;
      float* const low = digests_.data() + page * 3 * dim;
      float* const high = low + dim;
      float* const radius = high + dim;
      const auto round = [](float x) {
        return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
      };
      const auto widen = [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); };
      for (int64_t d = 0; d < dim; ++d) {
        low[d] = INFINITY;
        high[d] = -INFINITY;
        radius[d] = 0;
      }
      for (int64_t i = 0; i < kPageTokens * dim; ++i) {
        const int64_t d = i % dim;
        k[i] = round(distance * (centre[d] + 0.5F * keys[i]));
        v[i] = round(values[i]);
        low[d] = std::min(low[d], widen(k[i]));
        high[d] = std::max(high[d], widen(k[i]));
      }
      for (int64_t i = 0; i < kPageTokens * dim; ++i) {
        const int64_t d = i % dim;
        radius[d] += std::abs(widen(k[i]) - (low[d] + high[d]) / 2) / kPageTokens;
      }
    };
    std::vector<std::jthread> threads;
    const int64_t all = shape_.num_layers * shape_.num_kv_heads * pages;
    std::atomic<int64_t> next = 0;
    for (int i = 0; i < usable_cores(); ++i) {
      threads.emplace_back([&] {
        constexpr int64_t kBatch = 256;
        for (int64_t first = next.fetch_add(kBatch); first < all; first = next.fetch_add(kBatch)) {
          for (int64_t page = first; page < std::min(all, first + kBatch); ++page) make(page);
        }
      });
    }
    threads.clear();
    distance_ = distance;
  }

  // Copies the pages into page-locked memory, and their digests.
  void take_pages(std::span<const kernels::KvSlab> slabs) {
    host_ = must(device_.allocate_host(shape_.all_pages() * shape_.page_bytes()));
    const int64_t pages = shape_.num_pages(), dim = shape_.head_dim;
    const int64_t half = shape_.page_bytes() / 2;
    const int64_t row_bytes = dim * dtype_bytes(shape_.dtype);
    const auto bounds = must(device_.allocate(3 * pages * dim * 4));
    const int64_t whole = shape_.num_tokens / kPageTokens;
    digests_.resize(static_cast<size_t>(shape_.all_pages() * 3 * dim));
    for (size_t layer = 0; layer < slabs.size(); ++layer) {
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        const int64_t at = (static_cast<int64_t>(layer) * shape_.num_kv_heads + head) * pages;
        const auto& slab = slabs[layer];
        for (const bool values : {false, true}) {
          const auto* const rows = static_cast<const std::byte*>(values ? slab.v : slab.k) +
                                   head * slab.token_stride * row_bytes;
          auto* const to = host_.as<std::byte>() + at * shape_.page_bytes() + (values ? half : 0);
          device_.copy_rows({.destination = to,
                             .destination_stride_bytes = shape_.page_bytes(),
                             .source = rows,
                             .source_stride_bytes = half,
                             .row_bytes = half,
                             .num_rows = whole});
          device_.copy(to + whole * shape_.page_bytes(), rows + whole * half,
                       (shape_.num_tokens - whole * kPageTokens) * row_bytes);
        }
        float* const low = bounds.as<float>();
        device_.page_digests(
            {.k = static_cast<const std::byte*>(slab.k) + head * slab.token_stride * row_bytes,
             .dtype = slab.dtype,
             .num_tokens = shape_.num_tokens,
             .head_dim = shape_.head_dim,
             .min = low,
             .max = low + pages * dim,
             .radius = low + 2 * pages * dim});
        for (int64_t part = 0; part < 3; ++part) {
          device_.copy_rows({.destination = digests_.data() + (at * 3 + part) * dim,
                             .destination_stride_bytes = 3 * dim * 4,
                             .source = low + part * pages * dim,
                             .source_stride_bytes = dim * 4,
                             .row_bytes = dim * 4,
                             .num_rows = pages});
        }
        must(device_.synchronize(Deadline::after(kTimeout)));
      }
    }
  }

  std::vector<int32_t> generate(const std::string& name, model::GenerateRequest request,
                                json::object more, kernels::DevicePages* pages = nullptr) {
    const int32_t count = options_.warm_up + options_.steps;
    auto generator = must(model::Generator::create(
        device_, runtime_.weights(), runtime_.grid().tp(), runtime_.grid().cp(), count + 1));
    std::vector<double> step_s;
    Stopwatch watch;
    double before = 0;
    request.num_prompt_tokens = std::ssize(prompt_);
    request.first_token = first_token_;
    request.max_tokens = count + 1;
    request.ignore_eos = true;
    if (!reference_.empty()) request.follow = std::span(reference_).subspan(1);
    request.on_token = [&] {
      step_s.push_back(watch.elapsed_s() - before);
      before += step_s.back();
      if (pages != nullptr && std::ssize(step_s) == options_.warm_up) pages->reset_stats();
    };
    const auto tokens = must(generator.generate(request, [] { return Deadline::after(kTimeout); }));
    int64_t equal = 0;
    for (size_t i = 1; i < reference_.size(); ++i) equal += tokens[i] == reference_[i];
    auto timed = std::vector(step_s.begin() + options_.warm_up, step_s.end());
    std::sort(timed.begin(), timed.end());
    json::object line = {{"name", name},
                         {"model", runtime_.weights().config.name},
                         {"device", device_.info().name},
                         {"prompt_tokens", prompt_.size()},
                         {"step_ms", 1e3 * timed[timed.size() / 2]},
                         {"step_ms_p10", 1e3 * timed[timed.size() / 10]},
                         {"step_ms_p90", 1e3 * timed[timed.size() * 9 / 10]},
                         {"first_step_ms", 1e3 * step_s.front()},
                         {"equal", equal},
                         {"of", std::max<int64_t>(0, std::ssize(reference_) - 1)}};
    for (auto& [key, value] : more) line[key] = value;
    if (pages != nullptr) {
      const auto stats = must(pages->stats(Deadline::after(kTimeout)));
      const auto a_token = [&](int64_t n) {
        return static_cast<double>(n) / static_cast<double>(stats.tokens);
      };
      const auto share = [](int64_t part, int64_t all) {
        return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
      };
      line["pages_a_token"] = a_token(stats.pages_read);
      line["density"] = a_token(stats.pages_read) / static_cast<double>(shape_.all_pages());
      line["spared_a_token"] = a_token(stats.pages_spared);
      line["from_host_a_token"] = a_token(stats.from_host);
      line["hit_rate"] = 1 - share(stats.from_host, stats.pages_read + stats.pages_spared);
      line["foreseen"] = share(stats.pages_foreseen, stats.pages_of_foreseen);
      line["copied_a_token"] = a_token(stats.copied);
      line["skipped"] = stats.skipped;
    }
    fmt::print("{}\n", json::serialize(line));
    std::fflush(stdout);
    return tokens;
  }

  void measure(double mass, double share, bool foresee) {
    const auto slots = static_cast<int64_t>(share * static_cast<double>(shape_.all_pages()));
    const auto ahead = must(kernels::make_cuda_device({.index = device_.gpu_stream()->gpu}));
    const auto pages = must(kernels::make_cuda_device_pages(
        device_, ahead.get(), shape_,
        {.host = host_.as<std::byte>(),
         .num_slots = slots,
         .rule = {.log_odds = static_cast<float>(std::log((1 - mass) / mass))}}));
    const int64_t size = shape_.num_pages() * 3 * shape_.head_dim;
    for (int32_t i = 0; i < shape_.num_layers * shape_.num_kv_heads; ++i) {
      must(pages->set_digests(
          i / shape_.num_kv_heads, i % shape_.num_kv_heads,
          std::span(digests_).subspan(static_cast<size_t>(i * size), static_cast<size_t>(size))));
    }
    Stopwatch watch;
    must(pages->complete(Deadline::after(kTimeout)));
    const double complete_ms = 1e3 * watch.elapsed_s();
    auto prompt = must(decode::DevicePrompt::create(*pages, foresee ? ahead.get() : nullptr,
                                                    runtime_.weights(), std::ssize(prompt_)));
    const auto tokens = generate(fmt::format("mass {}, {} of the pages in slots{}", mass, share,
                                             foresee ? ", foreseen" : ""),
                                 {.attention = &prompt},
                                 {{"mass", mass},
                                  {"distance", distance_},
                                  {"share", share},
                                  {"foresee", foresee},
                                  {"slots_bytes", slots * shape_.page_bytes()},
                                  {"fill_ms", complete_ms}},
                                 pages.get());
    // With clustered pages there is no dense run to choose the tokens.
    if (reference_.empty()) reference_ = tokens;
  }

  engine::RankRuntime& runtime_;
  const Options& options_;
  kernels::Device& device_;
  kernels::DevicePagesShape shape_;
  std::vector<int32_t> prompt_, reference_;
  int32_t first_token_ = 0;
  float distance_ = 0;  // of clustered pages
  kernels::HostBuffer host_;
  std::vector<float> digests_;
};

int run(Options& options) {
  auto world = comm::LocalGroup::create(1);
  const auto runtime = must(engine::RankRuntime::create(std::move(world.front()), options.rank));
  Bench(*runtime, options).run();
  return 0;
}

}  // namespace

}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  options.rank.engine.end_process = millrace::engine::end_rank;
  options.rank.crossover_tokens = 0;  // only matters for plans that this program does not run
  CLI::App app("Decode steps of a GPU over pages in its memory and behind it",
               "decode_device_bench");
  millrace::engine::add_rank_options(app, options.rank);
  app.add_option("--tokens", options.tokens);
  app.add_option("--plan", options.plan);
  app.add_option("--steps", options.steps);
  app.add_option("--warm-up", options.warm_up);
  app.add_option("--mass", options.masses)->check(CLI::Range(0.01, 1.0));
  app.add_option("--share", options.shares)->check(CLI::Range(0.01, 1.0));
  app.add_option("--clustered", options.clustered,
                 "no prefill: keys about a centre by page, at this distance");
  app.add_flag("--needle", options.needle, "a prompt of the needle fixture");
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  return millrace::bench::run(options);
}
