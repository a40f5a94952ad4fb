// SPDX-License-Identifier: Apache-2.0
// JSON from untrusted sources: parsed with a limit on depth, and refused when an object repeats a
// key (parsers differ in which of the two counts, so a file could mean two things).
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "common/quote.h"
#include "common/result.h"

namespace millrace::model {

// kInvalidArgument with the place ("JSON: syntax error at byte 17"). The caller must limit the size
// of `text` and name the file.
Result<boost::json::value> parse_json(std::string_view text, int max_depth);

// For messages: formatted as JSON, so that control characters cannot reach a terminal, and cut when
// long.
std::string quote(const boost::json::value& value);
using millrace::quote;  // of text

}  // namespace millrace::model
