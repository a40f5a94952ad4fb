// SPDX-License-Identifier: Apache-2.0
// How long clients of a simulated fleet waited, by prompt length.
#pragma once

#include <string>
#include <vector>

#include "bench/fleet/simulation.h"

namespace millrace::bench {

struct WaitRow {
  std::string lengths;
  int64_t num_prompts = 0;
  int64_t num_failed = 0;  // refused, or past their deadline
  double median_s = 0;     // from arrival to answer, of the prompts that were answered
  double p99_s = 0;
  double most_s = 0;
};

// Rows: shorter than 8K tokens, to 64K, to 256K, longer, and all.
std::vector<WaitRow> wait_rows(const std::vector<Outcome>& outcomes);
std::string wait_table(const std::vector<WaitRow>& rows);

}  // namespace millrace::bench
