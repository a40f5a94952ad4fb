// SPDX-License-Identifier: Apache-2.0
#include "tests/support/needle_prompt.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace millrace::testing {
namespace {

constexpr int64_t kRecordTokens = 7;
constexpr int64_t kQueryTokens = 6;
constexpr int64_t kTailTokens = 2;  // the query at the end has no answer
constexpr int32_t kWords = kNeedleVocabSize - kNeedleWord0;
constexpr uint64_t kSuccessors = 4;

uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(mix64(seed)) {}
  int64_t below(int64_t n) {
    const uint64_t value = mix64(state_);
    state_ += 0x9e3779b97f4a7c15U;
    return static_cast<int64_t>(value % static_cast<uint64_t>(n));
  }

 private:
  uint64_t state_;
};

// The words that may follow a word in Markov filler: the relation that the model was trained on.
int32_t successor(int32_t word, int64_t branch) {
  const int32_t index = word - kNeedleWord0;
  const uint64_t hash = mix64(static_cast<uint64_t>(index) * kSuccessors + branch);
  return kNeedleWord0 + static_cast<int32_t>(hash % kWords);
}

int32_t random_word(SplitMix64& rng) {
  return kNeedleWord0 + static_cast<int32_t>(rng.below(kWords));
}

// Runs of random words, of Markov chains and of short repeated phrases, as in training. Local heads
// have something to do, and every key also occurs outside its record.
void append_filler_run(SplitMix64& rng, std::vector<int32_t>& out) {
  const int64_t length = 12 + rng.below(29);
  const int64_t kind = rng.below(100);
  const auto period = static_cast<size_t>(2 + rng.below(7));
  for (int64_t i = 0; i < length; ++i) {
    if (kind < 50 || i == 0) {
      out.push_back(random_word(rng));
    } else if (kind < 85) {
      out.push_back(successor(out.back(), rng.below(kSuccessors)));
    } else {
      const bool in_phrase = static_cast<size_t>(i) < period;
      out.push_back(in_phrase ? random_word(rng) : out[out.size() - period]);
    }
  }
}

// The starts of `count` disjoint spans of `length` tokens, uniform over [begin, end).
std::vector<int64_t> spread(SplitMix64& rng, int64_t begin, int64_t end, int count,
                            int64_t length) {
  const int64_t free = end - begin - count * length;
  if (free < 0) throw std::invalid_argument("needle prompt: too short for its records or queries");
  std::vector<int64_t> starts(count);
  for (int64_t& start : starts) start = rng.below(free + 1);
  std::ranges::sort(starts);
  for (int i = 0; i < count; ++i) starts[i] += begin + i * length;
  return starts;
}

struct Record {
  int32_t key;
  std::array<int32_t, 4> digits;
};

std::vector<Record> draw_records(SplitMix64& rng, int count) {
  if (count < 1 || count > kWords) throw std::invalid_argument("needle prompt: records");
  std::vector<bool> used(kWords, false);
  std::vector<Record> records(count);
  for (Record& record : records) {
    do {
      record.key = random_word(rng);
    } while (used[record.key - kNeedleWord0]);
    used[record.key - kNeedleWord0] = true;
    for (int32_t& digit : record.digits) {
      digit = kNeedleDigit0 + static_cast<int32_t>(rng.below(10));
    }
  }
  return records;
}

}  // namespace

NeedlePrompt make_needle_prompt(const NeedlePromptSpec& spec) {
  if (spec.tokens < 3 || spec.queries < 0) throw std::invalid_argument("needle prompt: size");
  SplitMix64 rng(spec.seed);
  // Keys are drawn in the order in which they are asked for, and places are shuffled, so that
  // records lie in the prompt in random order.
  const std::vector<Record> records = draw_records(rng, spec.records);
  std::vector<int64_t> record_starts = spread(rng, 1, spec.tokens / 3, spec.records, kRecordTokens);
  for (size_t i = record_starts.size(); i > 1; --i) {
    std::swap(record_starts[i - 1], record_starts[rng.below(static_cast<int64_t>(i))]);
  }
  const std::vector<int64_t> query_starts =
      spread(rng, spec.tokens / 3, spec.tokens - kTailTokens, spec.queries, kQueryTokens);

  NeedlePrompt prompt;
  std::vector<int32_t>& ids = prompt.token_ids;
  ids.push_back(kNeedleBos);
  while (static_cast<int64_t>(ids.size()) < spec.tokens) append_filler_run(rng, ids);
  ids.resize(spec.tokens);

  for (int i = 0; i < spec.records; ++i) {
    auto out = ids.begin() + record_starts[i];
    *out++ = kNeedleRecord;
    *out++ = records[i].key;
    out = std::ranges::copy(records[i].digits, out).out;
    *out = kNeedleRecordEnd;
  }
  const auto asked = [&](int query) -> const Record& {
    return records[spec.mode == NeedleMode::kOneRecord ? 0 : query % spec.records];
  };
  for (int i = 0; i < spec.queries; ++i) {
    auto out = ids.begin() + query_starts[i];
    *out++ = kNeedleQuery;
    *out++ = asked(i).key;
    std::ranges::copy(asked(i).digits, out);
    prompt.probe_positions.push_back(query_starts[i] + 1);
    prompt.expected_probe_tokens.push_back(asked(i).digits[0]);
  }
  const Record& last = asked(spec.queries);
  ids[spec.tokens - 2] = kNeedleQuery;
  ids[spec.tokens - 1] = last.key;
  prompt.answer_tokens.assign(last.digits.begin(), last.digits.end());
  return prompt;
}

}  // namespace millrace::testing
