// SPDX-License-Identifier: Apache-2.0
// The prefixes that a group has said it has cached, by the keys of common/content/prefix_keys.h.
// They are hints: a wrong or missing one costs time but never changes an answer, since the group
// looks itself. One thread.
//
// Keeps at most kMaxPrefixKeys keys, which stand for 33 million tokens and take some 2.6 MB in a
// hash set. What a group says beyond them is dropped.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/content/prefix_keys.h"
#include "coordinator/requests/request.h"
#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

class KnownPrefixes {
 public:
  static constexpr size_t kMaxPrefixKeys = 65'536;
  static constexpr size_t kMaxOrigins = 64;
  static constexpr int64_t kStepTokens = kPrefixKeyTokens;

  // Both return whether a message was missed and the group has to send everything again. They
  // return true only once, until it has.
  bool missed(const protocol::CachedPrefixes& said);
  // `sequence`: the number in a heartbeat. What one heartbeat announced must have arrived by the
  // next, because messages and heartbeats may overtake each other on their way into the connection.
  bool missed(uint64_t sequence);

  // The tokens of the prompt, from the first on, that the group has cached and the request may
  // read, in steps of 512 tokens. Never includes the last 64, which are always computed.
  int64_t tokens_of(const Request& request) const;
  // The most that the request may read there, whatever its plan became at its length, rounded down
  // to kStepTokens. Meaningful only while complete().
  int64_t most_tokens_of(const Request& request) const;
  bool complete() const { return reported_ && !asked_ && keys_.size() < kMaxPrefixKeys; }
  int64_t num_keys() const { return std::ssize(keys_); }

 private:
  // The range of prompt lengths at which pages of a plan were named by this key.
  struct Origin {
    std::string head_plan;
    double min_recall = 0;
    bool impure = false;
    int64_t least_tokens = 0;
    int64_t most_tokens = 0;
    uint64_t key = 0;
  };

  bool ask_once();
  void learn(const protocol::PlanOrigin& seen);
  static bool fits(const Origin& origin, const Request& request);
  const Origin* origin_of(const Request& request) const;
  int64_t tokens_under(const Origin& origin, const Request& request) const;

  uint64_t sequence_ = 0;
  uint64_t announced_ = 0;  // by the previous heartbeat
  bool reported_ = false;
  bool asked_ = false;
  std::unordered_set<uint64_t> keys_;
  std::vector<Origin> origins_;  // the latest last
};

}  // namespace millrace::coordinator
