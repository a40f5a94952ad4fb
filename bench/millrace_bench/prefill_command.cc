#include "bench/millrace_bench/prefill_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <utility>

#include "bench/millrace_bench/bench_device.h"
#include "bench/millrace_bench/kernel_cases.h"
#include "bench/millrace_bench/prefill_row.h"
#include "model/plan_for_length.h"
#include "model/synthetic_model.h"
#include "worker/rank_cli.h"

namespace millrace::bench {

namespace json = boost::json;

namespace {

// For a layer of the longest prompt on the slowest device.
constexpr auto kLayerTimeout = std::chrono::minutes(30);

// Rows that fill a device, for the roof.
constexpr int64_t kCpuProductRows = 512;
constexpr int64_t kGpuProductRows = 16384;

struct TimedRun {
  double total_s = 0;
  worker::PrefillResult result;
  std::vector<double> layer_s, layer_density;
};

class Run {
 public:
  Run(worker::RankRuntime& runtime, const PrefillCommand& command)
      : runtime_(&runtime), command_(command) {}

  Result<void> all() {
    MR_RETURN_IF_ERROR(measure_roof());
    if (root()) fmt::print("{}", prefill_header());
    for (const int64_t tokens : command_.tokens) MR_RETURN_IF_ERROR(run_length(tokens));
    return {};
  }

  json::object json() const {
    json::array rows;
    for (const auto& row : rows_) rows.push_back(to_json(row, context_of(row)));
    return {{"model", runtime_->weights().config.name},
            {"ranks", runtime_->grid().world().size()},
            {"roof_tflops", roof_tflops_},
            {"rows", std::move(rows)}};
  }
  bool repeatable() const { return std::ranges::all_of(rows_, &PrefillRow::repeatable); }

 private:
  bool root() const { return runtime_->grid().is_root(); }

  // All ranks at once, as they will compute; the first one's counts.
  Result<void> measure_roof() {
    auto& device = runtime_->device();
    const int64_t by_device = device.info().host_memory ? kCpuProductRows : kGpuProductRows;
    const int64_t rows = command_.product_rows > 0 ? command_.product_rows : by_device;
    MR_ASSIGN_OR_RETURN(const auto products,
                        KernelCases(device, {}).products(rows, runtime_->weights().compute_dtype));
    for (const auto& row : products) {
      const auto& gemm = row.parts.front();
      roof_tflops_ = std::max(roof_tflops_, 1e-9 * gemm.flops / gemm.timing.median_ms);
    }
    if (root()) fmt::print("products at {:.4g} TFLOP/s, the roof\n", roof_tflops_);
    return {};
  }

  // Runs of the plans alternate, so that a clock that drifts hits all of them.
  Result<void> run_length(int64_t num_tokens) {
    const auto& config = runtime_->weights().config;
    const auto prompt = model::synthetic_prompt(config, num_tokens, command_.seed);
    MR_RETURN_IF_ERROR(worker::check_prompt(prompt, runtime_->limits()));
    std::vector<model::HeadPlan> plans;
    for (const auto& spec : command_.plans) {
      MR_ASSIGN_OR_RETURN(
          auto plan, model::make_head_plan(spec, config, num_tokens, runtime_->crossover_tokens()));
      plans.push_back(model::plan_for_length(std::move(plan), num_tokens));
    }
    std::vector<std::vector<TimedRun>> runs(plans.size());
    for (int i = 0; i < command_.num_warm_ups + command_.num_repeats; ++i) {
      for (size_t p = 0; p < plans.size(); ++p) {
        MR_ASSIGN_OR_RETURN(auto run, run_once(prompt, plans[p]));
        runs[p].push_back(std::move(run));
      }
    }
    for (size_t p = 0; p < plans.size(); ++p) {
      take(row_of(num_tokens, command_.plans[p], std::move(runs[p])));
    }
    return {};
  }

  // Of all runs, those that warm up included.
  PrefillRow row_of(int64_t num_tokens, const std::string& spec, std::vector<TimedRun> runs) const {
    PrefillRow row{.num_tokens = num_tokens, .plan = spec};
    for (const auto& run : runs) {
      row.repeatable = row.repeatable && same(run.result, runs.front().result);
    }
    runs.erase(runs.begin(), runs.begin() + command_.num_warm_ups);
    std::ranges::sort(runs, {}, &TimedRun::total_s);
    for (const auto& run : runs) row.totals_s.push_back(run.total_s);
    auto& middle = runs[runs.size() / 2];
    row.result = std::move(middle.result);
    row.layer_s = std::move(middle.layer_s);
    row.layer_density = std::move(middle.layer_density);
    return row;
  }

  static bool same(const worker::PrefillResult& a, const worker::PrefillResult& b) {
    return a.first_token == b.first_token && a.density == b.density && a.recall == b.recall;
  }

  Result<TimedRun> run_once(const std::vector<int32_t>& prompt, const model::HeadPlan& plan) {
    TimedRun run;
    const Stopwatch watch;
    double passed_s = 0;
    const auto at_boundary = [&](const worker::LayerReport& report) -> Result<void> {
      run.layer_s.push_back(watch.elapsed_s() - passed_s);
      run.layer_density.push_back(report.density);
      passed_s = watch.elapsed_s();
      return {};
    };
    MR_ASSIGN_OR_RETURN(
        run.result,
        runtime_->engine().prefill({.token_ids = prompt, .plan = &plan, .at_boundary = at_boundary},
                                   kLayerTimeout));
    run.total_s = watch.elapsed_s();
    return run;
  }

  void take(PrefillRow row) {
    rows_.push_back(std::move(row));
    if (!root()) return;
    fmt::print("{}", prefill_line(rows_.back(), context_of(rows_.back())));
    std::fflush(stdout);
  }

  PrefillContext context_of(const PrefillRow& row) const {
    const auto is_dense = [&](const PrefillRow& other) {
      return other.num_tokens == row.num_tokens && other.plan == "dense";
    };
    const auto dense = std::ranges::find_if(rows_, is_dense);
    return {.config = &runtime_->weights().config,
            .roof_tflops = roof_tflops_,
            .num_ranks = runtime_->grid().world().size(),
            .dense_s = dense == rows_.end() ? 0 : dense->median_s()};
  }

  worker::RankRuntime* runtime_;
  const PrefillCommand& command_;
  double roof_tflops_ = 0;
  std::vector<PrefillRow> rows_;
};

int failed(const Error& error) {
  fmt::print(stderr, "millrace-bench: {}\n", error.to_string());
  return 2;
}

Result<void> write_results(const PrefillCommand& command, const RunInfo& info, const Run& run) {
  if (command.json_path.empty()) return {};
  json::object document = to_json(info);
  for (auto& member : run.json()) document[member.key()] = member.value();
  return write_json(command.json_path, document);
}

}  // namespace

void add_prefill_command(CLI::App& app, PrefillCommand& command) {
  worker::add_rank_options(app, command.rank);
  app.get_option("--model")->description(
      "a directory, or synthetic:llama-3-8b, synthetic:llama-3-70b, synthetic:qwen2.5-7b, "
      "synthetic:tiny");
  // Measuring where auto changes its mind takes longer than many benchmarks.
  command.rank.crossover_tokens = 0;
  app.add_option("--tokens", command.tokens, "lengths of the prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{4} << 20));
  app.add_option("--head-plan", command.plans,
                 "one or several, as text or as files; a dense one first to compare with");
  app.add_option("--repeats", command.num_repeats, "runs of each plan; the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--warm-ups", command.num_warm_ups, "runs before those that count")
      ->check(CLI::Range(0, 100));
  app.add_option("--product-rows", command.product_rows, "of the products that give the roof");
  app.add_option("--seed", command.seed, "of the prompt");
  app.add_option("--commit", command.commit, "what the results say they are of");
  app.add_option("--json", command.json_path, "file to write results to");
}

int run_prefill(const PrefillCommand& command, std::unique_ptr<comm::Communicator> world, int argc,
                char** argv) {
  const bool root = world->rank() == 0;
  const Stopwatch start;
  auto runtime = worker::RankRuntime::create(std::move(world), command.rank);
  if (!runtime.ok()) return failed(runtime.error());
  const auto info = run_info((*runtime)->device(), command.commit, argc, argv);
  if (root) {
    fmt::print("{}, commit {}, {}\n{}: {:.1f} s to start\n", info.device, info.commit, info.date,
               (*runtime)->weights().config.name, start.elapsed_s());
  }
  Run run(**runtime, command);
  const auto done = run.all();
  const auto written = root ? write_results(command, info, run) : Result<void>();
  if (!done.ok()) return failed(done.error());
  if (!written.ok()) return failed(written.error());
  return run.repeatable() ? 0 : 1;
}

}  // namespace millrace::bench
