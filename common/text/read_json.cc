// SPDX-License-Identifier: Apache-2.0
#include "common/text/read_json.h"

#include <boost/json/parser.hpp>

#include "common/text/json_mistake.h"

namespace millrace {

Result<boost::json::value> read_json(std::string_view text, size_t max_depth) {
  boost::json::parse_options options;
  options.max_depth = max_depth;
  boost::json::parser parser({}, options);
  boost::system::error_code wrong;
  const size_t at = parser.write_some(text.data(), text.size(), wrong);
  if (!wrong && text.find_first_not_of(" \t\r\n", at) != std::string_view::npos) {
    wrong = boost::json::make_error_code(boost::json::error::extra_data);
  }
  if (!wrong) return parser.release();
  return error(Errc::kInvalidArgument, "{}", json_mistake(text, at, wrong));
}

}  // namespace millrace
