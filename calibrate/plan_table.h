// What a calibration chose, for people.
#pragma once

#include <string>

#include "calibrate/calibration.h"

namespace millrace::calibrate {

// A line a layer: heads by pattern, mean time, density and error, and the largest error; then one of
// all layers.
std::string plan_table(const Calibration& calibration);

}  // namespace millrace::calibrate
