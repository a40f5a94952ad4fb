// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/mixed_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "common/content/prefix_keys.h"

namespace millrace::bench {

namespace {

using Keys = std::vector<uint64_t>;

constexpr size_t kNumSystemPrompts = 5;
constexpr int64_t kSystemKeys = 4;
// The mean distance, in conversations, from the newest one to one that goes on.
constexpr double kLateChats = 40;

class Drawer {
 public:
  explicit Drawer(const MixShape& shape) : shape_(shape), random_(shape.seed) {
    for (Keys& prompt : system_prompts_) prompt = fresh(kSystemKeys);
    for (int i = 0; i < shape.num_documents; ++i) {
      documents_.push_back(document());
      weights_.push_back(std::pow(i + 1, -0.8));
      sum_of_weights_ += weights_.back();
    }
  }

  Keys draw(int64_t request) {
    if (shape_.changes_every > 0 && request > 0 && request % shape_.changes_every == 0) {
      documents_[below(documents_.size())] = document();
    }
    return uniform() < shape_.chat_share ? turn() : question();
  }

 private:
  // std's distributions differ between libraries.
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  double exponential(double mean) { return -mean * std::log(1 - uniform()); }
  size_t below(size_t end) { return static_cast<size_t>(uniform() * static_cast<double>(end)); }

  Keys fresh(int64_t num_keys) {
    Keys keys;
    for (int64_t i = 0; i < num_keys; ++i) keys.push_back(next_key_++);
    return keys;
  }
  Keys document() {
    return fresh(std::max<int64_t>(1, length_at(0.3 + 0.7 * uniform()) / kPrefixKeyTokens));
  }
  Keys turn() {
    const auto back = static_cast<size_t>(exponential(kLateChats));
    size_t chat = 0;
    if (!chats_.empty() && uniform() < 0.75) {
      chat = chats_.size() - 1 - std::min(chats_.size() - 1, back);
    } else {
      chats_.push_back(system_prompts_[below(kNumSystemPrompts)]);
      chat = chats_.size() - 1;
    }
    const auto said = fresh(1 + static_cast<int64_t>(exponential(2)));
    chats_[chat].insert(chats_[chat].end(), said.begin(), said.end());
    return chats_[chat];
  }
  Keys question() {
    Keys keys =
        documents_.empty() || uniform() < shape_.once_share ? document() : documents_[popular()];
    const auto asked = fresh(1 + std::ssize(keys) / 50);
    keys.insert(keys.end(), asked.begin(), asked.end());
    return keys;
  }
  size_t popular() {
    double left = uniform() * sum_of_weights_;
    size_t i = 0;
    while (i + 1 < weights_.size() && left >= weights_[i]) left -= weights_[i++];
    return i;
  }

  const MixShape shape_;
  std::mt19937_64 random_;
  uint64_t next_key_ = 1;
  std::array<Keys, kNumSystemPrompts> system_prompts_;
  std::vector<Keys> documents_;
  std::vector<double> weights_;
  double sum_of_weights_ = 0;
  std::vector<Keys> chats_;
};

}  // namespace

Trace draw_mixed_trace(const MixShape& shape) {
  Drawer drawer(shape);
  Trace trace;
  for (int64_t i = 0; i < shape.num_requests; ++i) {
    auto keys = drawer.draw(i);
    const auto num_tokens = std::ssize(keys) * kPrefixKeyTokens;
    trace.push_back({.at_s = static_cast<double>(i),
                     .num_tokens = num_tokens,
                     .owner = "",
                     .prefix_keys = std::move(keys)});
  }
  return trace;
}

}  // namespace millrace::bench
