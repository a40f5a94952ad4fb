// SPDX-License-Identifier: Apache-2.0
#include "model/json/json_fields.h"

#include <utility>

#include "model/json/json_text.h"

namespace millrace::model {

JsonFields::JsonFields(const boost::json::object& object, std::string file, std::string prefix)
    : object_(&object), file_(std::move(file)), prefix_(std::move(prefix)) {}

const boost::json::value* JsonFields::find(std::string_view name) const {
  const auto* value = object_->if_contains({name.data(), name.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<int32_t> JsonFields::count(std::string_view name, int32_t max) const {
  const auto* value = find(name);
  // Integers too large for int64 parse as another kind and fail here as well.
  const auto* integer = value != nullptr ? value->if_int64() : nullptr;
  if (integer == nullptr || *integer < 1 || *integer > max) {
    return invalid(name, fmt::format("an integer from 1 to {}", max));
  }
  return static_cast<int32_t>(*integer);
}

Result<int32_t> JsonFields::count_or(std::string_view name, int32_t fallback, int32_t max) const {
  if (find(name) == nullptr) return fallback;
  return count(name, max);
}

Result<double> JsonFields::number(std::string_view name, double min, double max) const {
  const auto* value = find(name);
  if (value != nullptr && value->is_number()) {
    const auto number = value->to_number<double>();
    if (number >= min && number <= max) return number;
  }
  return invalid(name, fmt::format("a number from {:g} to {:g}", min, max));
}

Result<double> JsonFields::number_or(std::string_view name, double fallback, double min,
                                     double max) const {
  if (find(name) == nullptr) return fallback;
  return number(name, min, max);
}

Result<bool> JsonFields::boolean_or(std::string_view name, bool fallback) const {
  const auto* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) return invalid(name, "true or false");
  return value->get_bool();
}

Result<std::string> JsonFields::string_or(std::string_view name, std::string_view fallback) const {
  const auto* value = find(name);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) return invalid(name, "a string");
  return std::string(value->get_string());
}

Result<JsonFields> JsonFields::object(std::string_view name) const {
  const auto* value = find(name);
  if (value == nullptr || !value->is_object()) return invalid(name, "an object");
  return JsonFields(value->get_object(), file_, fmt::format("{}{}.", prefix_, name));
}

Error JsonFields::invalid(std::string_view name, std::string_view expected) const {
  return problem(Errc::kInvalidArgument, name, fmt::format("expected {}", expected));
}

Error JsonFields::unsupported(std::string_view name, std::string_view supported) const {
  return problem(Errc::kUnsupported, name, fmt::format("supported: {}", supported));
}

Error JsonFields::problem(Errc code, std::string_view name, std::string_view what) const {
  const auto* value = find(name);
  if (value == nullptr) return error(code, "{}: {}{} is missing: {}", file_, prefix_, name, what);
  return error(code, "{}: {}{} = {}: {}", file_, prefix_, name, quote(*value), what);
}

}  // namespace millrace::model
