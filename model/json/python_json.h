// SPDX-License-Identifier: Apache-2.0
// JSON as Python's json module writes and reads it, which is more than JSON: NaN, Infinity and
// -Infinity are numbers there, and strings may have half of a surrogate pair. Files of Hugging Face
// models are written by Python, and sometimes edited on systems that begin a file with a byte order
// mark.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::model {

// As parse_json (model/json/json_text.h), but NaN and the infinities become strings of the same
// words, so that a field that must be a number is refused with the word; half of a surrogate pair
// becomes U+FFFD; and a byte order mark of UTF-8 is skipped. kInvalidArgument: also text in UTF-16
// or UTF-32.
Result<boost::json::value> parse_python_json(std::string_view text, int max_depth);

// The JSON value in a file of at most `max_bytes`. Messages begin with the path. kNotFound, kIo,
// kTooLarge, and errors of parse_python_json.
Result<boost::json::value> read_python_json(const std::string& path, int64_t max_bytes,
                                            int max_depth);

}  // namespace millrace::model
