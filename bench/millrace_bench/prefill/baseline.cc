// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/baseline.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value_to.hpp>
#include <fstream>
#include <sstream>
#include <string_view>

namespace millrace::bench {

namespace json = boost::json;

namespace {

// Operations of all ranks over the phases of the slowest rank.
double attention_tflops(const json::object& row, int num_ranks) {
  const auto* phases = row.if_contains("phases_s");
  const auto* attention =
      phases == nullptr ? nullptr : phases->as_object().if_contains("attention");
  if (attention == nullptr) return 0;
  return 1e-12 * row.at("attention_flops").to_number<double>() / num_ranks /
         attention->to_number<double>();
}

std::vector<Baseline::Row> rows_of(const json::object& document) {
  const auto num_ranks = document.at("ranks").to_number<int>();
  std::vector<Baseline::Row> rows;
  for (const auto& value : document.at("rows").as_array()) {
    const auto& row = value.as_object();
    rows.push_back({.num_tokens = row.at("tokens").to_number<int64_t>(),
                    .plan = plan_label(json::value_to<std::string>(row.at("plan"))),
                    .num_ranks = num_ranks,
                    .total_s = row.at("total_s").to_number<double>(),
                    .attention_tflops = attention_tflops(row, num_ranks)});
  }
  return rows;
}

}  // namespace

double Baseline::Row::efficiency(double run_s, int run_ranks) const {
  return total_s * num_ranks / (run_s * run_ranks);
}

Result<Baseline> Baseline::load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return error(Errc::kNotFound, "cannot read {}", path);
  std::ostringstream text;
  text << file.rdbuf();
  Baseline baseline;
  // Boost.JSON throws if a member is missing or of another type.
  try {
    baseline.rows_ = rows_of(json::parse(text.str()).as_object());
  } catch (const std::exception& e) {
    return error(Errc::kInvalidArgument, "{}: not results of millrace-bench prefill: {}", path,
                 e.what());
  }
  return baseline;
}

const Baseline::Row* Baseline::find(int64_t num_tokens, const std::string& plan) const {
  const auto found = std::ranges::find_if(rows_, [&](const Row& row) {
    return row.num_tokens == num_tokens && row.plan == plan_label(plan);
  });
  return found == rows_.end() ? nullptr : &*found;
}

std::string plan_label(const std::string& plan) {
  constexpr std::string_view kEnding = ".json";
  std::string label = plan.substr(plan.rfind('/') + 1);  // npos + 1 is 0
  if (label.ends_with(kEnding)) label.resize(label.size() - kEnding.size());
  return label;
}

}  // namespace millrace::bench
