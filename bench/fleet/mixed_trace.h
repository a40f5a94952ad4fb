// Prompts of a service that answers questions about long documents and holds short conversations: what a prefix cache is
// for, and what its rule of what gives way is judged by.
#pragma once

#include <cstdint>

#include "bench/fleet/trace.h"

namespace millrace::bench {

struct MixShape {
  int64_t num_requests = 6000;
  uint64_t seed = 1;
  // Of the prompts, turns of conversations. Three of four go on with one of late, a turn of some 1,500 tokens behind all
  // before it; the others begin with one of five system prompts of 2,048 tokens.
  double chat_share = 0.7;
  // The others are questions, a fiftieth of the prompt, about documents of 8K to a million tokens with the lengths of
  // draw_trace() beyond its first three tenths. Some are asked about once:
  double once_share = 0.3;
  // the others are of these, the i-th of which is asked about as often as i^-0.8 says.
  int num_documents = 200;
  // After so many prompts one of them is another; 0: never.
  int64_t changes_every = 0;
};

// A second apart.
Trace draw_mixed_trace(const MixShape& shape);

}  // namespace millrace::bench
