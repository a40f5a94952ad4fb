// SPDX-License-Identifier: Apache-2.0
// A human-readable table of what a calibration chose.
#pragma once

#include <string>

#include "calibrate/calibration.h"

namespace millrace::calibrate {

// One line a layer: heads by pattern, mean time, density and error, and the largest error; or the
// layer's sliding window. Then one line for all layers without a window.
std::string plan_table(const Calibration& calibration);

}  // namespace millrace::calibrate
