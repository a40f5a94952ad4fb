// SPDX-License-Identifier: Apache-2.0
// Reads a JSON object piece by piece. It stores only the current string, so memory is bounded by
// the text and by what the sink keeps, not by how the JSON nests. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "common/result.h"
#include "coordinator/requests/refusal.h"

namespace millrace::coordinator {

// Any value except objects and arrays. Null is std::monostate; a uint64_t is above 2^63; a double
// was written with a fraction or an exponent.
using JsonScalar = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string_view>;

// "null", "a boolean", "a string" ...: for errors.
std::string_view kind_of(const JsonScalar& value);

// Is told of everything inside the object, in the order of the text. An error ends the reading.
class JsonSink {
 public:
  virtual ~JsonSink() = default;
  virtual Result<void> key(std::string_view name) = 0;
  virtual Result<void> value(const JsonScalar& value) = 0;
  virtual Result<void> object_begins() = 0;
  virtual Result<void> object_ends() = 0;
  virtual Result<void> array_begins() = 0;
  virtual Result<void> array_ends() = 0;
  // The field that its errors are about.
  virtual const std::string& blamed() const = 0;
};

// Refuses malformed JSON, nesting deeper than 256, anything other than one object, and what the sink
// refuses.
std::optional<Refusal> read_json_object(std::string_view text, JsonSink& sink);

}  // namespace millrace::coordinator
