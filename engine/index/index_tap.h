// SPDX-License-Identifier: Apache-2.0
// For studies and tests: a look at each layer's index after it is built and before attention uses
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/index/index_builder.h"
#include "kernels/api/attention.h"
#include "kernels/index/index.h"
#include "kernels/index/tiling.h"
#include "plan/head_plan.h"

namespace millrace::engine {

// The index of one layer on this rank and what it was built from, all in device memory except plan
// and tiles. The engine owns it and overwrites it with the next layer's.
struct BuiltIndex {
  int32_t layer = 0;
  const plan::HeadPlan* plan = nullptr;  // of all heads of the model
  LocalQueries queries;
  kernels::KvSlab kv;  // K of all tokens; V may still be on its way from other ranks
  std::span<const kernels::RowTile> tiles;  // of the queries' rows; tile i has local number i
  kernels::IndexView index;
};

// Called on the engine's thread. May replace the lists, within their capacity.
using IndexTap = std::function<void(const BuiltIndex& built)>;

}  // namespace millrace::engine
