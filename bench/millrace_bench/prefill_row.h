// One line of `millrace-bench prefill`: a prompt through all layers under one head plan.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "worker/engine.h"

namespace millrace::bench {

struct PrefillRow {
  int64_t num_tokens = 0;
  std::string plan;
  std::vector<double> totals_s;  // of all runs that count, ascending
  worker::PrefillResult result;  // of the run in the middle; phases are of the slowest rank
  std::vector<double> layer_s;   // of that run, on rank 0
  std::vector<double> layer_density;
  bool repeatable = true;  // all runs gave the same first token, density and recall

  double median_s() const { return totals_s[totals_s.size() / 2]; }
};

// What a prefill computes at least, in floating-point operations of all ranks together.
struct PrefillWork {
  double linear = 0;
  double attention = 0;  // of the pairs that were computed
};
PrefillWork work_of(const PrefillRow& row, const model::ModelConfig& config);
// Seconds on `num_ranks` devices that do nothing but products at `roof_tflops` each; 0: no roof.
double floor_s(const PrefillWork& work, double roof_tflops, int num_ranks);

// Where a row stands among its run: the roof, and the dense run of the same length.
struct PrefillContext {
  const model::ModelConfig* config = nullptr;
  double roof_tflops = 0;
  int num_ranks = 1;
  double dense_s = 0;  // 0: not run
};
boost::json::object to_json(const PrefillRow& row, const PrefillContext& context);
std::string prefill_header();
std::string prefill_line(const PrefillRow& row, const PrefillContext& context);

}  // namespace millrace::bench
