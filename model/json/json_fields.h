// SPDX-License-Identifier: Apache-2.0
// Reads the fields of one JSON object of a file with type and range. Every error names the file,
// the field, the value found and what would have been right.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::model {

// The object outlives the JsonFields.
class JsonFields {
 public:
  // `prefix` goes before field names in messages: "rope_scaling.".
  JsonFields(const boost::json::object& object, std::string file, std::string prefix = "");

  // Null when the field is absent or JSON null: Hugging Face writes either for "not set".
  const boost::json::value* find(std::string_view name) const;
  // Whether the field is there, as JSON null too. A class of Transformers assumes its own value
  // where a field is absent, and for some fields another one where it is null.
  bool has(std::string_view name) const { return object_->contains({name.data(), name.size()}); }

  // A required integer in [1, max].
  Result<int32_t> count(std::string_view name, int32_t max) const;
  Result<int32_t> count_or(std::string_view name, int32_t fallback, int32_t max) const;
  // A required number in [min, max].
  Result<double> number(std::string_view name, double min, double max) const;
  Result<double> number_or(std::string_view name, double fallback, double min, double max) const;
  Result<bool> boolean_or(std::string_view name, bool fallback) const;
  Result<std::string> string_or(std::string_view name, std::string_view fallback) const;
  // The fields of a required object.
  Result<JsonFields> object(std::string_view name) const;

  // "config.json: num_heads = 0: expected ..."; `expected` says what would have been right.
  Error invalid(std::string_view name, std::string_view expected) const;
  // kUnsupported; `supported` says what is supported.
  Error unsupported(std::string_view name, std::string_view supported) const;

 private:
  Error problem(Errc code, std::string_view name, std::string_view what) const;

  const boost::json::object* object_;
  std::string file_;
  std::string prefix_;
};

}  // namespace millrace::model
