// Earlier results of `millrace-bench prefill`, usually on one GPU, that a run on several ranks is
// held against.
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
    std::string plan;  // plan_label() of the run's
    int num_ranks = 1;
    double total_s = 0;
    double attention_tflops = 0;  // of a rank in the attention phase; 0: not known

    // Share of the baseline's throughput a rank that `num_ranks` ranks reach with `total_s`.
    double efficiency(double total_s, int num_ranks) const;
  };

  // kNotFound, kInvalidArgument: not such results.
  static Result<Baseline> load(const std::string& path);

  // Null: no such row.
  const Row* find(int64_t num_tokens, const std::string& plan) const;

 private:
  std::vector<Row> rows_;
};

// What a head plan goes by in results: as given, and a file by its name without folder and ending.
std::string plan_label(const std::string& plan);

}  // namespace millrace::bench
