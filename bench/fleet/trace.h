// SPDX-License-Identifier: Apache-2.0
// Prompts as they arrive: from a file, or drawn from published statistics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace millrace::bench {

struct Arrival {
  double at_s = 0;  // since the first one; a trace is in this order
  int64_t num_tokens = 0;
  std::string owner;
  int32_t priority = 0;
  std::vector<uint64_t>
      prefix_keys;  // of its first 512 tokens, 1,024, ...; empty: it shares nothing
};

using Trace = std::vector<Arrival>;

// Reads a file of one JSON object a line. It is either {"at_s": 0.25, "tokens": 67000, "owner":
// "a", "priority": 1}, the last two optional, or the format of Mooncake's published traces,
// {"timestamp": 250, "input_length": 67000, ...}, in milliseconds. Both may have "hash_ids":
// numbers of the prompt's beginnings, each 512 tokens longer than the one before; equal numbers
// mean equal beginnings. Anything else is an error that names the line.
Result<Trace> read_trace(const std::string& path);

struct TraceShape {
  int64_t num_requests = 10'000;
  double requests_per_s = 1;
  int num_owners = 1;  // each sends equally often
  uint64_t seed = 1;
  // Each prompt begins with a document, drawn evenly from this many. `shared` of the prompt are the
  // document's first tokens, the rest is its own. 0: prompts share nothing.
  int num_documents = 0;
  double shared = 0.95;
};

// Poisson arrivals. Lengths are as services for long prompts report them: 18 % under 8K tokens, a
// median of 67K, 53 % of at least 64K, 3.5 % over 256K, the longest a million. Between these points
// the logarithm of the length is uniform.
Trace draw_trace(const TraceShape& shape);

// The length that this share of prompts stay below.
int64_t length_at(double share);

// The share of tokens that an earlier prompt began with, in steps of 512 tokens: what a cache that
// knows everything and is never full would find.
double share_seen_before(const Trace& trace);

}  // namespace millrace::bench
