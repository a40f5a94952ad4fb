// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/fleet_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace millrace::bench {

namespace {

struct Lengths {
  const char* name;
  int64_t from;
  int64_t to;
};

constexpr int64_t kLongest = int64_t{1} << 62;
constexpr std::array<Lengths, 5> kLengths = {{{"under 8K", 0, 8 << 10},
                                              {"8K to 64K", 8 << 10, 64 << 10},
                                              {"64K to 256K", 64 << 10, 256 << 10},
                                              {"over 256K", 256 << 10, kLongest},
                                              {"all", 0, kLongest}}};

// The smallest value that at least `share` of the values do not exceed.
double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

}  // namespace

std::vector<WaitRow> wait_rows(const std::vector<Outcome>& outcomes) {
  std::vector<WaitRow> rows;
  for (const Lengths& lengths : kLengths) {
    WaitRow row{.lengths = lengths.name};
    std::vector<double> waited;
    for (const Outcome& outcome : outcomes) {
      const int64_t tokens = outcome.arrival.num_tokens;
      if (tokens < lengths.from || tokens >= lengths.to) continue;
      ++row.num_prompts;
      if (outcome.failure) {
        ++row.num_failed;
      } else {
        waited.push_back(outcome.waited_s());
      }
    }
    std::sort(waited.begin(), waited.end());
    row.median_s = quantile(waited, 0.5);
    row.p99_s = quantile(waited, 0.99);
    row.most_s = waited.empty() ? 0 : waited.back();
    rows.push_back(row);
  }
  return rows;
}

std::string wait_table(const std::vector<WaitRow>& rows) {
  std::string text = fmt::format("{:12} {:>8} {:>7} {:>9} {:>9} {:>9}\n", "tokens", "prompts",
                                 "failed", "median s", "99 % s", "most s");
  for (const WaitRow& row : rows) {
    text += fmt::format("{:12} {:>8} {:>7} {:>9.2f} {:>9.2f} {:>9.2f}\n", row.lengths,
                        row.num_prompts, row.num_failed, row.median_s, row.p99_s, row.most_s);
  }
  return text;
}

}  // namespace millrace::bench
