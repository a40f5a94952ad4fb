// SPDX-License-Identifier: Apache-2.0
// One value of a metric at one moment, as it travels from a rank to the process that publishes it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::metrics {

using Labels = std::map<std::string, std::string>;

struct Sample {
  std::string name;
  std::string help;
  bool counter = false;  // else a gauge
  Labels labels;
  double value = 0;
};

// Names are millrace_<noun>_<unit>; the units are listed in sample.cc, counters end in _total.
Result<void> check_metric_name(std::string_view name, bool counter);

// What a sample from another process must satisfy before it is published: its name, its labels'
// names, and sizes (128 characters a name, 256 a label value, 8 labels).
Result<void> check_sample(const Sample& sample);

}  // namespace millrace::metrics
