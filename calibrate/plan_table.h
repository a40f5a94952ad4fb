// What a calibration chose, for people.
#pragma once

#include <string>

#include "calibrate/calibration.h"

namespace millrace::calibrate {

// A line a layer: heads by pattern, mean time, density and error, and the largest error, or the
// layer's sliding window; then one of all layers without a window.
std::string plan_table(const Calibration& calibration);

}  // namespace millrace::calibrate
