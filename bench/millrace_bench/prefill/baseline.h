// SPDX-License-Identifier: Apache-2.0
// Earlier results of `millrace-bench prefill`, usually on one GPU, with which a run on several
// ranks is compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace millrace::bench {

class Baseline {
 public:
  struct Row {
    int64_t num_tokens = 0;
    std::string plan;  // plan_label() of the run's plan
    int num_ranks = 1;
    double total_s = 0;
    double attention_tflops = 0;  // of one rank in the attention phase; 0: not known

    // The share of the baseline's throughput per rank that `num_ranks` ranks reach if they take
    // `total_s`.
    double efficiency(double total_s, int num_ranks) const;
  };

  // kNotFound; kInvalidArgument if the file does not have such results.
  static Result<Baseline> load(const std::string& path);

  // Null if there is no such row.
  const Row* find(int64_t num_tokens, const std::string& plan) const;

 private:
  std::vector<Row> rows_;
};

// The name of a head plan in results: as given, but a file without its folder and extension.
std::string plan_label(const std::string& plan);

}  // namespace millrace::bench
