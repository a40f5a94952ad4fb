// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/kernel_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>

namespace millrace::bench {

namespace json = boost::json;

namespace {

double tflops(const KernelRow::Part& part) {
  return 1e-9 * part.flops / part.timing.median_ms;
}
double int8_tops(const KernelRow::Part& part) {
  return 1e-9 * part.int8_ops / part.timing.median_ms;
}
double gbytes_per_s(const KernelRow::Part& part) {
  return 1e-6 * part.bytes / part.timing.median_ms;
}

json::object part_json(const KernelRow::Part& part, const Roof& roof) {
  json::object object{{"name", part.name},
                      {"ms", part.timing.median_ms},
                      {"min_ms", part.timing.min_ms},
                      {"max_ms", part.timing.max_ms},
                      {"calls_a_sample", part.timing.calls_a_sample}};
  if (part.flops > 0) object["tflops"] = tflops(part);
  if (part.bytes > 0) object["gbytes_per_s"] = gbytes_per_s(part);
  if (part.int8_ops > 0) object["int8_tops"] = int8_tops(part);
  if (const double floor = floor_ms(part, roof); floor > 0) {
    object["floor_ms"] = floor;
    object["share_of_roof"] = floor / part.timing.median_ms;
  }
  return object;
}

std::string rate(const KernelRow::Part& part) {
  if (part.flops > 0) return fmt::format("{:.4g} TFLOP/s", tflops(part));
  if (part.bytes > 0) return fmt::format("{:.0f} GB/s", gbytes_per_s(part));
  if (part.int8_ops > 0) return fmt::format("{:.0f} TOP/s", int8_tops(part));
  return "";
}

std::string share(const KernelRow::Part& part, const Roof& roof) {
  const double floor = floor_ms(part, roof);
  return floor > 0 ? fmt::format("{:.1f} %", 100 * floor / part.timing.median_ms) : "";
}

std::string verdict(const KernelRow& row) {
  if (row.checks.empty()) return "not checked";
  std::string text;
  for (const auto& check : row.checks) {
    text +=
        fmt::format("{}{} {} ({:.2g} of {:.2g}{}{})", text.empty() ? "" : ", ", check.what,
                    check.ok() ? "ok" : "WRONG", check.error, check.allowed,
                    check.ok() || check.where.empty() ? "" : ", ", check.ok() ? "" : check.where);
  }
  return text;
}

constexpr auto kLine = "{:<18}{:<14}{:>9}{:>7}{:>9}  {:<12}{:>10}{:>16}{:>9}  {}\n";

}  // namespace

double KernelRow::total_ms() const {
  double sum = 0;
  for (const auto& part : parts) sum += part.timing.median_ms;
  return sum;
}

bool KernelRow::ok() const {
  return std::ranges::all_of(checks, &CheckResult::ok);
}

double floor_ms(const KernelRow::Part& part, const Roof& roof) {
  if (part.flops > 0 && roof.tflops > 0) return 1e-9 * part.flops / roof.tflops;
  if (part.bytes > 0 && roof.gbytes_per_s > 0) return 1e-6 * part.bytes / roof.gbytes_per_s;
  return 0;
}

json::object to_json(const KernelRow& row, const Roof& roof) {
  json::array parts, checks;
  for (const auto& part : row.parts) {
    parts.push_back(part_json(part, roof));
    parts.back().as_object()["share_of_time"] = part.timing.median_ms / row.total_ms();
  }
  for (const auto& check : row.checks) {
    checks.push_back(json::object{{"what", check.what},
                                  {"error", check.error},
                                  {"allowed", check.allowed},
                                  {"where", check.where},
                                  {"ok", check.ok()}});
  }
  return {{"name", row.name},
          {"setting", row.setting},
          {"tokens", row.num_tokens},
          {"query_heads", row.num_query_heads},
          {"kv_heads", row.num_kv_heads},
          {"density", row.density},
          {"index_bytes", row.index_bytes},
          {"ms", row.total_ms()},
          {"parts", std::move(parts)},
          {"checks", std::move(checks)}};
}

std::string table_header() {
  return fmt::format(kLine, "what", "setting", "tokens", "heads", "density", "part", "ms", "rate",
                     "of roof", "check");
}

std::string table_lines(const KernelRow& row, const Roof& roof) {
  std::string lines;
  bool first = true;
  for (const auto& part : row.parts) {
    const auto heads = row.num_query_heads > 0
                           ? fmt::format("{}/{}", row.num_query_heads, row.num_kv_heads)
                           : std::string();
    const auto density = row.density < 1 ? fmt::format("{:.2f} %", 100 * row.density) : "";
    lines += first ? fmt::format(kLine, row.name, row.setting, row.num_tokens, heads, density,
                                 part.name, fmt::format("{:.4g}", part.timing.median_ms),
                                 rate(part), share(part, roof), verdict(row))
                   : fmt::format(kLine, "", "", "", "", "", part.name,
                                 fmt::format("{:.4g}", part.timing.median_ms), rate(part),
                                 share(part, roof), "");
    first = false;
  }
  if (row.parts.size() > 1) {
    lines += fmt::format(kLine, "", "", "", "", "", "together",
                         fmt::format("{:.4g}", row.total_ms()), "", "", "");
  }
  return lines;
}

}  // namespace millrace::bench
