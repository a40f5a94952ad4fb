// SPDX-License-Identifier: Apache-2.0
// The header of a tokenizer's frame: an object, or the error that it contains. Pure.
#pragma once

#include <boost/json/object.hpp>

#include "common/result.h"
#include "tokenizer/frame.h"

namespace millrace::tokenizer {

// {"error": {"code": "invalid_argument", "message": "..."}} becomes that error.
Result<boost::json::object> read_header(const Frame& frame);

}  // namespace millrace::tokenizer
