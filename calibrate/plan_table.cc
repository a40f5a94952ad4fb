// SPDX-License-Identifier: Apache-2.0
#include "calibrate/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace millrace::calibrate {

namespace {

constexpr std::array kColumns{plan::Pattern::kDense, plan::Pattern::kAShape,
                              plan::Pattern::kVerticalSlash, plan::Pattern::kBlockSparse,
                              plan::Pattern::kAdaptive};

// Totals of one layer or of several.
struct Row {
  std::array<int, kColumns.size()> heads{};
  double time = 0, density = 0, error = 0, worst = 0;
  int count = 0;

  void add(const HeadChoice& head) {
    const auto column = std::ranges::find(kColumns, head.pattern.pattern) - kColumns.begin();
    ++heads[static_cast<size_t>(column)];
    time += head.time;
    density += head.density;
    error += head.error;
    worst = std::max(worst, head.error);
    ++count;
  }

  std::string text(const std::string& name) const {
    std::string line = fmt::format("{:>5}", name);
    for (size_t i = 0; i < kColumns.size(); ++i) {
      const int width = static_cast<int>(plan::pattern_name(kColumns[i]).size());
      line += heads[i] == 0 ? fmt::format("  {:>{}}", "-", width)
                            : fmt::format("  {:>{}}", heads[i], width);
    }
    return line + fmt::format("  {:>5.3f}  {:>7.3f}  {:>6.4f}  {:>6.4f}\n", time / count,
                              density / count, error / count, worst);
  }
};

}  // namespace

std::string plan_table(const Calibration& calibration) {
  std::string table = "layer";
  for (const plan::Pattern pattern : kColumns)
    table += fmt::format("  {}", plan::pattern_name(pattern));
  table += "  time   density  error   worst\n";
  Row all;
  for (int32_t layer = 0; layer < calibration.num_layers; ++layer) {
    if (const int64_t window = calibration.windows[static_cast<size_t>(layer)]; window > 0) {
      table += fmt::format("{:>5}  window of {} tokens\n", layer, window);
      continue;
    }
    Row row;
    for (int32_t head = 0; head < calibration.num_heads; ++head) {
      row.add(calibration.at(layer, head));
      all.add(calibration.at(layer, head));
    }
    table += row.text(std::to_string(layer));
  }
  return table + all.text("all");
}

}  // namespace millrace::calibrate
