// SPDX-License-Identifier: Apache-2.0
// A number from a group as JSON, which has no NaN and no infinity.
#pragma once

#include <boost/json/value.hpp>
#include <cmath>

namespace millrace::coordinator {

inline boost::json::value number_or_null(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
}

}  // namespace millrace::coordinator
