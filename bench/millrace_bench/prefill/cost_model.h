// SPDX-License-Identifier: Apache-2.0
// What a prefill should take: its operations, its memory traffic and its exchanges, each at the
// rate that this machine reaches when it does nothing else. Any time beyond that is waiting,
// launches and index building. Where a run takes less, exchanges overlapped with computation.
#pragma once

#include <cstdint>

#include "engine/ranks/rank_grid.h"
#include "model/config/config.h"

namespace millrace::bench {

struct PrefillCase {
  const model::ModelConfig* config = nullptr;
  engine::GridShape grid;
  int64_t num_tokens = 0;
  int64_t element_bytes = 2;  // of activations, K and V
  double density = 1;         // covered pairs over causal pairs
  double imbalance = 1;       // the most pairs of a rank over the mean

  int num_ranks() const { return grid.tp * grid.cp; }
};

// The rates of one rank, each measured alone. 0: not measured, and not counted.
struct CostRates {
  double product_tflops = 0;
  double attention_tflops = 0;
  double memory_gbytes_per_s = 0;      // read and written
  double all_gather_gbytes_per_s = 0;  // received
  double all_reduce_gbytes_per_s = 0;  // received, as CommStats counts
};

// The least number of floating-point operations, of all ranks together.
struct PrefillWork {
  double linear = 0;
  double attention = 0;  // of the pairs that were computed
};
PrefillWork work_of(const PrefillCase& prefill);
// Seconds on `num_ranks` devices that only compute products, at `roof_tflops` each; 0: no roof.
double floor_s(const PrefillWork& work, double roof_tflops, int num_ranks);

// Bytes of the rank that has the most.
struct PrefillTraffic {
  double memory = 0;      // read and written by everything but products
  double all_gather = 0;  // received: K and V of the other context-parallel ranks
  double all_reduce = 0;  // received: sums over the tensor-parallel ranks
};
PrefillTraffic traffic_of(const PrefillCase& prefill);

struct PredictedTime {
  double linear_s = 0;
  double attention_s = 0;  // of the rank with the most pairs
  double memory_s = 0;
  double exchange_s = 0;  // as if none overlapped with computation

  double total_s() const { return linear_s + attention_s + memory_s + exchange_s; }
};
PredictedTime predicted_time(const PrefillCase& prefill, const CostRates& rates);

}  // namespace millrace::bench
