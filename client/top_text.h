// SPDX-License-Identifier: Apache-2.0
// What GET /overview answers, as lines of text for a terminal: groups with the fill of their pools,
// running prompts with their layers and time left, the queue, what has ended. Pure. Names and ids
// come from strangers: anything but printable ASCII in them shows as '?'.
#pragma once

#include <boost/json/object.hpp>
#include <string>

namespace millrace::client {

struct TopLayout {
  int columns = 80;   // no line is longer; at least 40
  int rows = 0;       // no more lines than this; 0: all
  bool bold = false;  // headings, by ANSI sequences, which take no columns
};

// Lines that end in '\n'. A field that is missing or of another type shows as '-'.
std::string top_text(const boost::json::object& overview, const TopLayout& layout);

}  // namespace millrace::client
