// SPDX-License-Identifier: Apache-2.0
// The best rates of the machine that a prefill is timed on, measured in the same run on all ranks
// at once.
#pragma once

#include <boost/json/object.hpp>

#include "bench/millrace_bench/prefill/link_speed.h"
#include "common/result.h"
#include "engine/runtime/rank_runtime.h"

namespace millrace::bench {

struct MachineRates {
  double product_tflops = 0;  // the fastest of Llama 3 8B's products: the roof
  double dense_tflops = 0;    // of dense attention
  double sparse_tflops = 0;   // of attention under a large given vertical-slash set
  double memory_gbytes_per_s = 0;
  LinkSpeed tp;
  LinkSpeed cp;
};

// Collective over the runtime's ranks; each gets its own figures. `product_rows` 0: as many as fill
// the device.
Result<MachineRates> measure_rates(engine::RankRuntime& runtime, int64_t product_rows);

boost::json::object to_json(const MachineRates& rates);

}  // namespace millrace::bench
