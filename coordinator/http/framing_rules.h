// What a request must keep to beside being readable, so that whoever stands between a client and the
// coordinator finds the same requests in the same bytes: RFC 9112, where the parser allows more than
// one reading. Pure.
#pragma once

#include <boost/beast/http/message.hpp>
#include <optional>
#include <string_view>

#include "common/result.h"

namespace millrace::coordinator {

// Of a header that was read: its target, Host, and what says where its body ends.
std::optional<Error> check_header(const boost::beast::http::header</*isRequest=*/true>& header);

// A line of fields that goes on in the next one ("obs-fold"). `fields`: as they came, without the line
// before them.
bool has_folded_line(std::string_view fields);

// Control characters in the extensions of a chunk, which a quoted string may hold: to some a line feed
// ends the line.
bool has_control_character(std::string_view extensions);

}  // namespace millrace::coordinator
