// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/known_prefixes.h"

#include <algorithm>
#include <limits>

#include "common/content/prefix_keys.h"
#include "common/page_tokens.h"

namespace millrace::coordinator {

namespace {

constexpr size_t kMaxPlanChars = 4096;

}  // namespace

bool KnownPrefixes::missed(const protocol::CachedPrefixes& said) {
  if (said.whole()) {
    keys_.clear();
    origins_.clear();
    asked_ = false;
  } else if (said.sequence() <= sequence_) {
    return false;  // already known from a whole message
  } else if (said.sequence() != sequence_ + 1) {
    return ask_once();
  }
  reported_ = true;
  sequence_ = said.sequence();
  for (const uint64_t key : said.gone()) keys_.erase(key);
  for (const uint64_t key : said.added()) {
    if (keys_.size() < kMaxPrefixKeys) keys_.insert(key);
  }
  for (const auto& origin : said.origins()) learn(origin);
  return false;
}

bool KnownPrefixes::missed(uint64_t sequence) {
  const bool behind = announced_ > sequence_;
  announced_ = sequence;
  return behind && ask_once();
}

bool KnownPrefixes::ask_once() {
  return !std::exchange(asked_, true);
}

void KnownPrefixes::learn(const protocol::PlanOrigin& seen) {
  if (seen.head_plan().size() > kMaxPlanChars) return;
  const auto num_tokens = static_cast<int64_t>(
      std::min<uint64_t>(seen.num_tokens(), std::numeric_limits<int32_t>::max()));
  const auto known = std::ranges::find_if(origins_, [&](const Origin& one) {
    return one.key == seen.origin() && one.head_plan == seen.head_plan() &&
           one.min_recall == seen.min_recall();
  });
  Origin latest{.head_plan = seen.head_plan(),
                .min_recall = seen.min_recall(),
                .impure = seen.impure(),
                .least_tokens = num_tokens,
                .most_tokens = num_tokens,
                .key = seen.origin()};
  if (known != origins_.end()) {
    latest.least_tokens = std::min(num_tokens, known->least_tokens);
    latest.most_tokens = std::max(num_tokens, known->most_tokens);
    origins_.erase(known);
  } else if (origins_.size() == kMaxOrigins) {
    origins_.erase(origins_.begin());
  }
  origins_.push_back(std::move(latest));
}

bool KnownPrefixes::fits(const Origin& origin, const Request& request) {
  return origin.head_plan == request.options.head_plan() &&
         origin.min_recall == request.options.min_recall() &&
         (!origin.impure || request.options.cache_impure());
}

// What a plan becomes depends on the length (auto, LongRoPE), so the nearest known length is used.
const KnownPrefixes::Origin* KnownPrefixes::origin_of(const Request& request) const {
  const Origin* best = nullptr;
  double least_distance = std::numeric_limits<double>::infinity();
  const auto length = static_cast<double>(request.num_tokens);
  for (const Origin& origin : origins_) {
    if (!fits(origin, request)) continue;
    const double distance = std::max({1.0, static_cast<double>(origin.least_tokens) / length,
                                      length / static_cast<double>(origin.most_tokens)});
    if (distance > least_distance) continue;
    least_distance = distance;
    best = &origin;
  }
  return best;
}

int64_t KnownPrefixes::tokens_of(const Request& request) const {
  if (keys_.empty() || request.prefix_keys.empty()) return 0;
  if ((request.options.cache() & protocol::CACHE_READ) == 0) return 0;
  const Origin* const origin = origin_of(request);
  return origin == nullptr ? 0 : tokens_under(*origin, request);
}

int64_t KnownPrefixes::most_tokens_of(const Request& request) const {
  if ((request.options.cache() & protocol::CACHE_READ) == 0) return 0;
  int64_t most = 0;
  for (const Origin& origin : origins_) {
    if (fits(origin, request)) most = std::max(most, tokens_under(origin, request));
  }
  return most;
}

int64_t KnownPrefixes::tokens_under(const Origin& origin, const Request& request) const {
  // A page is never dropped before those that follow it.
  const auto end = std::ranges::partition_point(request.prefix_keys, [&](uint64_t key) {
    return keys_.contains(stored_prefix_key(key, origin.key, request.tenant));
  });
  const int64_t cached = (end - request.prefix_keys.begin()) * kPrefixKeyTokens;
  return std::max<int64_t>(0, std::min(cached, request.num_tokens - kPageTokens));
}

}  // namespace millrace::coordinator
