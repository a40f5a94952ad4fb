// What a group has said it has cached: beginnings of prompts, by the keys of common/content/prefix_keys.h.
// A hint: what is wrong or missing here costs time, never an answer, since the group looks itself. One
// thread.
//
// At most kMaxPrefixKeys keys, which are 33 million tokens and take some 2.6 MB in a hash set; what a
// group says beyond them is not kept.
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

  // Both say whether something was missed, and the group is to send all of it: once, until it has.
  bool missed(const protocol::CachedPrefixes& said);
  // By the number in a heartbeat: what one said has to be here with the next, since the two ways into
  // the connection may cross.
  bool missed(uint64_t sequence);

  // Of the prompt, from the first token on: what the group has cached and the request may read, in
  // steps of 512 tokens. Never the last 64, which are computed in any case.
  int64_t tokens_of(const Request& request) const;
  // What it may read there at most, whatever a plan became at its length; to less than the next kStepTokens.
  // Of use only while complete(): what the group holds is known, all of it.
  int64_t most_tokens_of(const Request& request) const;
  bool complete() const { return heard_ && !asked_ && keys_.size() < kMaxPrefixKeys; }
  int64_t num_keys() const { return std::ssize(keys_); }

 private:
  // The lengths at which pages of a plan were named so.
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
  uint64_t announced_ = 0;  // by the heartbeat before
  bool heard_ = false;
  bool asked_ = false;
  std::unordered_set<uint64_t> keys_;
  std::vector<Origin> origins_;  // the latest last
};

}  // namespace millrace::coordinator
