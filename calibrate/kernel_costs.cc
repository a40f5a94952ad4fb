// SPDX-License-Identifier: Apache-2.0
#include "calibrate/kernel_costs.h"

#include <array>
#include <boost/json/object.hpp>
#include <cmath>
#include <limits>
#include <utility>

#include "model/json/json_text.h"

namespace millrace::calibrate {

namespace {

namespace json = boost::json;

constexpr int kMaxDepth = 4;

// A ratio beyond these is an error: no kernel is a million times faster than another.
constexpr double kLeastCost = 1e-6;
constexpr double kMostCost = 1e6;

template <typename Costs>
auto ratios(Costs& costs) {
  return std::array{std::pair{"listed_block", &costs.listed_block},
                    std::pair{"gathered_block", &costs.gathered_block},
                    std::pair{"probed_page", &costs.probed_page},
                    std::pair{"pooled_block", &costs.pooled_block},
                    std::pair{"sampled_block", &costs.sampled_block}};
}

Error wrong_field(std::string_view name, std::string_view expected) {
  return error(Errc::kInvalidArgument, "{}: expected {}", name, expected);
}

Result<int64_t> positive_integer(const json::object& object, std::string_view name) {
  const auto* value = object.if_contains(name);
  const auto* number = value == nullptr ? nullptr : value->if_int64();
  if (number == nullptr || *number < 1 || *number > std::numeric_limits<int32_t>::max()) {
    return wrong_field(name, "a whole number of 1 or more");
  }
  return *number;
}

Result<std::string> text_field(const json::object& object, std::string_view name) {
  const auto* value = object.if_contains(name);
  const auto* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr) return wrong_field(name, "a text");
  return std::string(text->data(), text->size());
}

Result<double> ratio(const json::object& object, std::string_view name) {
  const auto* value = object.if_contains(name);
  double number = 0;
  if (value != nullptr && value->is_number()) number = value->to_number<double>();
  if (number >= kLeastCost && number <= kMostCost) return number;
  return wrong_field(name, "a number from 1e-6 to 1e6");
}

}  // namespace

double rounded_cost(double cost) {
  const double power = std::exp2(std::round(std::log2(cost) * 4) / 4);
  const double digits = std::pow(10, 3 - std::floor(std::log10(power)));
  return std::round(power * digits) / digits;
}

std::string costs_json(const KernelCosts& costs) {
  std::string text = fmt::format(
      "{{\"device\": {},\n \"dtype\": \"{}\", \"query_heads\": {}, \"kv_heads\": {}, "
      "\"head_dim\": {}, \"tokens\": {}",
      model::quote(json::value(costs.device)), dtype_name(costs.shape.dtype),
      costs.shape.num_query_heads, costs.shape.num_kv_heads, costs.shape.head_dim,
      costs.num_tokens);
  for (const auto& [name, value] : ratios(costs)) {
    text += fmt::format(",\n \"{}\": {}", name, *value);
  }
  return text + "}\n";
}

Result<KernelCosts> parse_costs(std::string_view text) {
  MR_ASSIGN_OR_RETURN(const auto value, model::parse_json(text, kMaxDepth));
  const auto* object = value.if_object();
  if (object == nullptr) return Error(Errc::kInvalidArgument, "expected an object");
  KernelCosts costs;
  MR_ASSIGN_OR_RETURN(costs.device, text_field(*object, "device"));
  MR_ASSIGN_OR_RETURN(const auto name, text_field(*object, "dtype"));
  const auto dtype = find_dtype(name);
  if (!dtype) return wrong_field("dtype", "float32, bfloat16 or float16");
  MR_ASSIGN_OR_RETURN(const auto query_heads, positive_integer(*object, "query_heads"));
  MR_ASSIGN_OR_RETURN(const auto kv_heads, positive_integer(*object, "kv_heads"));
  MR_ASSIGN_OR_RETURN(const auto head_dim, positive_integer(*object, "head_dim"));
  costs.shape = {.num_query_heads = static_cast<int32_t>(query_heads),
                 .num_kv_heads = static_cast<int32_t>(kv_heads),
                 .head_dim = static_cast<int32_t>(head_dim),
                 .dtype = *dtype};
  MR_ASSIGN_OR_RETURN(costs.num_tokens, positive_integer(*object, "tokens"));
  for (const auto& [field, place] : ratios(costs)) {
    MR_ASSIGN_OR_RETURN(*place, ratio(*object, field));
  }
  return costs;
}

}  // namespace millrace::calibrate
