// SPDX-License-Identifier: Apache-2.0
// Prompts of a service that answers questions about long documents and holds short conversations.
// This is what a prefix cache is for, and what its rule for dropping columns is judged by.
#pragma once

#include <cstdint>

#include "bench/fleet/trace.h"

namespace millrace::bench {

struct MixShape {
  int64_t num_requests = 6000;
  uint64_t seed = 1;
  // The share of prompts that are turns of conversations. Three in four continue a recent
  // conversation: about 1,500 new tokens after all earlier ones. The others begin with one of five
  // system prompts of 2,048 tokens.
  double chat_share = 0.7;
  // The other prompts are questions about documents of 8K to a million tokens; a question has a
  // fiftieth of its document's tokens. Documents have the lengths of draw_trace() without its
  // shortest three tenths. This share of the questions is about a document that nobody asks about
  // again:
  double once_share = 0.3;
  // the others are about these documents; the i-th is asked about in proportion to i^-0.8.
  int num_documents = 200;
  // After this many prompts, another document replaces one of these; 0: never.
  int64_t changes_every = 0;
};

// Prompts arrive one second apart.
Trace draw_mixed_trace(const MixShape& shape);

}  // namespace millrace::bench
