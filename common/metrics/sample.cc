// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/sample.h"

#include <algorithm>
#include <array>

namespace millrace::metrics {

namespace {

constexpr std::string_view kPrefix = "millrace_";
constexpr size_t kMaxNameChars = 128;
constexpr size_t kMaxLabelValueChars = 256;
constexpr size_t kMaxLabels = 8;

// What a gauge or histogram may count or measure.
constexpr std::array<std::string_view, 16> kUnits = {
    "_seconds", "_bytes",  "_ratio",       "_tokens",   "_pages",       "_requests",
    "_groups",  "_ranks",  "_leases",      "_slots",    "_connections", "_info",
    "_threads", "_layers", "_descriptors", "_processes"};

bool is_word(std::string_view text) {
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9') &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

}  // namespace

Result<void> check_metric_name(std::string_view name, bool counter) {
  if (name.size() > kMaxNameChars) {
    return error(Errc::kInvalidArgument, "metric name of {} characters, limit {}", name.size(),
                 kMaxNameChars);
  }
  if (!is_word(name) || !name.starts_with(kPrefix)) {
    return error(Errc::kInvalidArgument, "metric name '{}' is not {}[a-z0-9_]+", name, kPrefix);
  }
  if (name.ends_with("_total") != counter) {
    return error(Errc::kInvalidArgument,
                 "metric '{}': counters, and only counters, must end in _total", name);
  }
  if (!counter && std::none_of(kUnits.begin(), kUnits.end(),
                               [&](std::string_view unit) { return name.ends_with(unit); })) {
    return error(Errc::kInvalidArgument, "metric '{}' must end in a unit", name);
  }
  return {};
}

Result<void> check_sample(const Sample& sample) {
  MR_RETURN_IF_ERROR(check_metric_name(sample.name, sample.counter));
  if (sample.labels.size() > kMaxLabels) {
    return error(Errc::kInvalidArgument, "metric '{}': {} labels, limit {}", sample.name,
                 sample.labels.size(), kMaxLabels);
  }
  for (const auto& [name, value] : sample.labels) {
    if (!is_word(name) || name.starts_with("__") || name.size() > kMaxNameChars) {
      return error(Errc::kInvalidArgument, "metric '{}': bad label name '{:.40}'", sample.name,
                   name);
    }
    if (value.size() > kMaxLabelValueChars) {
      return error(Errc::kInvalidArgument, "metric '{}': label {} of {} characters, limit {}",
                   sample.name, name, value.size(), kMaxLabelValueChars);
    }
  }
  return {};
}

}  // namespace millrace::metrics
