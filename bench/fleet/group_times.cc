// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/group_times.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <sstream>

namespace millrace::bench {

namespace {

namespace json = boost::json;

std::vector<double> numbers_of(const json::object& object, std::string_view name) {
  std::vector<double> out;
  const json::value* values = object.if_contains(name);
  if (values == nullptr || !values->is_array()) return out;
  for (const json::value& value : values->as_array()) {
    if (value.is_number()) out.push_back(value.to_number<double>());
  }
  return out;
}

// -1 if the value is not such an integer.
int64_t integer_of(const json::object& object, std::string_view name, int64_t if_missing) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) return if_missing;
  return value->is_int64() && value->as_int64() <= 1'000'000 ? value->as_int64() : -1;
}

double number_of(const json::object& object, std::string_view name, double if_missing) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) return if_missing;
  return value->is_number() ? value->to_number<double>() : -1;
}

bool ascending(const std::vector<double>& values) {
  return std::is_sorted(values.begin(), values.end(), std::less_equal<>()) && values.front() > 0;
}

}  // namespace

double GroupTimes::seconds_of(int64_t num_tokens) const {
  const double length = std::log(static_cast<double>(num_tokens));
  size_t i = 1;
  while (i + 1 < tokens.size() && tokens[i] < static_cast<double>(num_tokens)) ++i;
  const double from = std::log(tokens[i - 1]);
  const double share = (length - from) / (std::log(tokens[i]) - from);
  // Times never fall as lengths grow: part of the shortest time is overhead.
  return seconds[i - 1] * std::pow(seconds[i] / seconds[i - 1], std::max(share, 0.0));
}

Result<std::map<std::string, GroupTimes>> read_group_times(const std::string& path) {
  std::ifstream file(path);
  if (!file) return error(Errc::kIo, "cannot read {}", path);
  std::stringstream text;
  text << file.rdbuf();
  boost::system::error_code failure;
  const json::value parsed = json::parse(text.str(), failure);
  if (failure || !parsed.is_object()) {
    return error(Errc::kInvalidArgument, "{}: must be a JSON object", path);
  }
  std::map<std::string, GroupTimes> kinds;
  std::map<std::string, std::string> lanes;
  for (const auto& [name, value] : parsed.as_object()) {
    if (!value.is_object()) continue;
    const json::object& object = value.as_object();
    GroupTimes times;
    times.tokens = numbers_of(object, "tokens");
    times.seconds = numbers_of(object, "seconds");
    const auto num_gpus = integer_of(object, "gpus", 0);
    const auto num_layers = integer_of(object, "layers", times.num_layers);
    const auto layers_ahead = integer_of(object, "layers_ahead", times.layers_ahead);
    const auto overhead_s = number_of(object, "overhead_s", times.overhead_s);
    const auto preempt_s = number_of(object, "preempt_s", times.preempt_s);
    const auto between_s = number_of(object, "between_s", times.between_s);
    const bool well = num_gpus > 0 && num_layers > 0 && layers_ahead >= 0 && overhead_s >= 0 &&
                      times.tokens.size() >= 2 && times.tokens.size() == times.seconds.size() &&
                      ascending(times.tokens) && ascending(times.seconds);
    if (!well) {
      return error(Errc::kInvalidArgument,
                   "{}: '{}' must have gpus, and tokens and seconds of the same number, at least "
                   "two, ascending; layers, if any, from 1, layers_ahead and overhead_s from 0",
                   path, std::string_view(name));
    }
    times.num_gpus = static_cast<int>(num_gpus);
    times.num_layers = static_cast<int>(num_layers);
    times.layers_ahead = static_cast<int>(layers_ahead);
    times.overhead_s = overhead_s;
    times.preempt_s = preempt_s;
    times.between_s = between_s;
    kinds[std::string(name)] = std::move(times);
    const json::value* lane = object.if_contains("lane");
    if (lane != nullptr) lanes[std::string(name)] = lane->is_string() ? lane->get_string() : "";
  }
  for (const auto& [name, lane] : lanes) {
    if (kinds.count(lane) == 0) {
      return error(Errc::kInvalidArgument, "{}: lane of '{}' must be the name of another kind",
                   path, name);
    }
    kinds[name].lane = std::make_shared<const GroupTimes>(kinds[lane]);
  }
  return kinds;
}

}  // namespace millrace::bench
