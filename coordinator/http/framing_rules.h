// SPDX-License-Identifier: Apache-2.0
// Rules that a request must keep in addition to being readable, so that every proxy between a
// client and the coordinator finds the same requests in the same bytes: RFC 9112, where the parser
// allows more than one reading. Pure.
#pragma once

#include <boost/beast/http/message.hpp>
#include <optional>
#include <string_view>

#include "common/result.h"

namespace millrace::coordinator {

// Checks a complete header: its target, Host, and the fields that say where its body ends.
std::optional<Error> check_header(const boost::beast::http::header</*isRequest=*/true>& header);

// Whether a field continues on the next line ("obs-fold"). `fields`: as received; the request
// line may come before them.
bool has_folded_line(std::string_view fields);

// Whether the extensions of a chunk contain control characters. A quoted string may hold them, but
// some parsers let a line feed end the line.
bool has_control_character(std::string_view extensions);

}  // namespace millrace::coordinator
