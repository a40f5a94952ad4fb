// One line of `millrace-bench kernels`: an operation at one size, timed, with what it is held
// against.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "bench/millrace_bench/kernels/reference_check.h"
#include "bench/millrace_bench/kernels/timing.h"

namespace millrace::bench {

struct KernelRow {
  std::string name;     // "vertical-slash"
  std::string setting;  // "1000,6096"
  int64_t num_tokens = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  double density = 1;  // computed share of the causal pairs
  int64_t index_bytes = 0;

  // What the row consists of; the first part that does `flops` is what the roof is applied to.
  struct Part {
    std::string name;  // "attention"
    Timing timing;
    double flops = 0;     // 0: not counted in operations
    double bytes = 0;     // read and written, for what memory bounds; 0: not counted
    double int8_ops = 0;  // of products of int8, for which no roof is measured; 0: not counted
  };
  std::vector<Part> parts;
  std::vector<CheckResult> checks;

  double total_ms() const;
  bool ok() const;
};

// What this machine does at best, measured in the same run.
struct Roof {
  double tflops = 0;  // of a large matrix product; 0: not measured
  double gbytes_per_s = 0;
};

// Milliseconds at the roof; 0 where the part is not counted or the roof not measured.
double floor_ms(const KernelRow::Part& part, const Roof& roof);

boost::json::object to_json(const KernelRow& row, const Roof& roof);
std::string table_header();
std::string table_lines(const KernelRow& row, const Roof& roof);

}  // namespace millrace::bench
