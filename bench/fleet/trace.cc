// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <random>
#include <set>

#include "common/content/prefix_keys.h"
#include "coordinator/text/limits.h"

namespace millrace::bench {

namespace {

namespace json = boost::json;

constexpr int64_t kMaxTokens = 16 << 20;
// A week. The scheduler looks at its groups several times in each simulated second, so longer
// traces would take too long.
constexpr double kLatestS = 7 * 24 * 3600;

// The share of prompts that are shorter than `tokens`.
struct Quantile {
  double share;
  double tokens;
};
constexpr std::array<Quantile, 6> kLengths = {
    {{0, 1024}, {0.18, 8192}, {0.47, 65536}, {0.5, 67000}, {0.965, 262144}, {1, 1048576}}};

const json::value* find_number(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_number() ? value : nullptr;
}

Result<void> read_hash_ids(const json::object& object, Arrival& arrival) {
  const json::value* ids = object.if_contains("hash_ids");
  if (ids == nullptr) return {};
  if (!ids->is_array()) return error(Errc::kInvalidArgument, "hash_ids must be an array");
  for (const json::value& id : ids->as_array()) {
    if (!id.is_int64()) return error(Errc::kInvalidArgument, "hash_ids must be integers");
    // Mooncake also numbers the last, partial run.
    if (std::ssize(arrival.prefix_keys) == arrival.num_tokens / kPrefixKeyTokens) break;
    arrival.prefix_keys.push_back(static_cast<uint64_t>(id.as_int64()));
  }
  return {};
}

// Keys of a prompt whose first `shared_tokens` are those of a document.
std::vector<uint64_t> keys_of(int64_t num_tokens, int64_t shared_tokens, uint64_t document,
                              uint64_t prompt) {
  std::vector<uint64_t> keys;
  for (int64_t end = kPrefixKeyTokens; end <= num_tokens; end += kPrefixKeyTokens) {
    const bool is_shared = end <= shared_tokens;
    keys.push_back(stored_prefix_key(static_cast<uint64_t>(end), is_shared ? 1 : 2,
                                     is_shared ? document : prompt));
  }
  return keys;
}

Result<Arrival> parse_arrival(const std::string& line) {
  boost::system::error_code failure;
  const json::value parsed = json::parse(line, failure);
  if (failure || !parsed.is_object()) {
    return error(Errc::kInvalidArgument, "must be a JSON object");
  }
  const json::object& object = parsed.as_object();
  const json::value* seconds = find_number(object, "at_s");
  const json::value* milliseconds = find_number(object, "timestamp");
  const json::value* tokens = find_number(object, seconds != nullptr ? "tokens" : "input_length");
  if ((seconds == nullptr && milliseconds == nullptr) || tokens == nullptr) {
    return error(Errc::kInvalidArgument,
                 "must have the numbers at_s and tokens, or timestamp and input_length");
  }
  const double at_s =
      seconds != nullptr ? seconds->to_number<double>() : 1e-3 * milliseconds->to_number<double>();
  const auto length = tokens->to_number<double>();
  if (!(at_s >= 0 && at_s <= kLatestS)) {
    return error(Errc::kInvalidArgument, "arrives at {} s; must be 0 to {}", at_s, kLatestS);
  }
  if (!(length >= 1 && length <= kMaxTokens)) {
    return error(Errc::kInvalidArgument, "a prompt of {} tokens; must be 1 to {}", length,
                 kMaxTokens);
  }
  Arrival out{.at_s = at_s,
              .num_tokens = std::llround(length),
              .owner = "",
              .priority = 0,
              .prefix_keys = {}};
  MR_RETURN_IF_ERROR(read_hash_ids(object, out));
  if (const json::value* priority = object.if_contains("priority"); priority != nullptr) {
    const int64_t* value = priority->if_int64();
    if (value == nullptr || *value < -coordinator::kMaxPriority ||
        *value > coordinator::kMaxPriority) {
      return error(Errc::kInvalidArgument, "priority must be an integer from {} to {}",
                   -coordinator::kMaxPriority, coordinator::kMaxPriority);
    }
    out.priority = static_cast<int32_t>(*value);
  }
  if (const json::value* owner = object.if_contains("owner"); owner != nullptr) {
    if (!owner->is_string()) return error(Errc::kInvalidArgument, "owner must be a string");
    out.owner = std::string(owner->as_string());
  }
  return out;
}

}  // namespace

int64_t length_at(double share) {
  size_t i = 1;
  while (i + 1 < kLengths.size() && kLengths[i].share < share) ++i;
  const auto& [low, from] = kLengths[i - 1];
  const auto& [high, to] = kLengths[i];
  return std::llround(from * std::pow(to / from, (share - low) / (high - low)));
}

Result<Trace> read_trace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return error(Errc::kIo, "cannot read {}", path);
  Trace trace;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    auto arrival = parse_arrival(line);
    if (!arrival.ok()) {
      return error(Errc::kInvalidArgument, "{}:{}: {}", path, number, arrival.error().message);
    }
    trace.push_back(std::move(*arrival));
  }
  if (trace.empty()) return error(Errc::kInvalidArgument, "{} has no requests", path);
  std::stable_sort(trace.begin(), trace.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_s < b.at_s; });
  const double first_s = trace.front().at_s;
  for (Arrival& arrival : trace) arrival.at_s -= first_s;
  return trace;
}

Trace draw_trace(const TraceShape& shape) {
  std::mt19937_64 random(shape.seed);
  // std's distributions differ between libraries.
  const auto uniform = [&random] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  Trace trace;
  double at_s = 0;
  for (int64_t i = 0; i < shape.num_requests; ++i) {
    const int owner = static_cast<int>(uniform() * shape.num_owners);
    Arrival arrival{.at_s = at_s,
                    .num_tokens = length_at(uniform()),
                    .owner = fmt::format("owner-{}", owner),
                    .priority = 0,
                    .prefix_keys = {}};
    if (shape.num_documents > 0) {
      const auto document = static_cast<uint64_t>(uniform() * shape.num_documents);
      const auto shared = std::llround(shape.shared * static_cast<double>(arrival.num_tokens));
      arrival.prefix_keys = keys_of(arrival.num_tokens, shared, document, static_cast<uint64_t>(i));
    }
    trace.push_back(std::move(arrival));
    at_s += -std::log(1 - uniform()) / shape.requests_per_s;
  }
  return trace;
}

double share_seen_before(const Trace& trace) {
  std::set<std::pair<std::string, uint64_t>> seen;
  int64_t tokens = 0;
  int64_t seen_tokens = 0;
  for (const Arrival& arrival : trace) {
    tokens += arrival.num_tokens;
    bool all_seen = true;
    for (const uint64_t key : arrival.prefix_keys) {
      all_seen = !seen.emplace(arrival.owner, key).second && all_seen;
      if (all_seen) seen_tokens += kPrefixKeyTokens;
    }
  }
  return tokens == 0 ? 0 : static_cast<double>(seen_tokens) / static_cast<double>(tokens);
}

}  // namespace millrace::bench
