// SPDX-License-Identifier: Apache-2.0
// One line of `millrace-bench kernels`: an operation at one size, its times, and the figures they
// are compared with.
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

  // The parts of the row. The roof applies to the first part that has `flops`.
  struct Part {
    std::string name;  // "attention"
    Timing timing;
    double flops = 0;     // 0: operations are not counted
    double bytes = 0;     // read and written, if memory is the bound; 0: not counted
    double int8_ops = 0;  // operations of int8 products, whose roof is not measured; 0: not counted
  };
  std::vector<Part> parts;
  std::vector<CheckResult> checks;

  double total_ms() const;
  bool ok() const;
};

// The best rates of this machine, measured in the same run.
struct Roof {
  double tflops = 0;  // of a large matrix product; 0: not measured
  double gbytes_per_s = 0;
};

// Milliseconds at the roof; 0 if the part is not counted or the roof is not measured.
double floor_ms(const KernelRow::Part& part, const Roof& roof);

boost::json::object to_json(const KernelRow& row, const Roof& roof);
std::string table_header();
std::string table_lines(const KernelRow& row, const Roof& roof);

}  // namespace millrace::bench
