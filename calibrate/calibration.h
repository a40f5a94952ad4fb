// SPDX-License-Identifier: Apache-2.0
// The pattern search over a user's prompts: two passes of dense prefill through the engine, with
// each layer's Q, K and V examined on the way.
//
// A prompt takes the time of two dense prefills and, for each ladder, of some seven indices and one
// attention a layer. Memory in addition to that of a prefill: LayerTrial's, for the longest prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/pattern_search.h"
#include "common/result.h"
#include "engine/runtime/rank_runtime.h"
#include "plan/head_plan.h"

namespace millrace::calibrate {

struct CalibrationOptions {
  SearchOptions search;
  std::vector<plan::Pattern> patterns{std::begin(kSearchedPatterns), std::end(kSearchedPatterns)};
  std::optional<KernelCosts> costs;  // none: measured
  // Called from time to time with the progress as a fraction of 1. May be empty.
  std::function<void(double done)> progress;
};

struct Calibration {
  KernelCosts costs;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  std::vector<HeadChoice> heads;  // [layers, query heads]
  // [layers] the sliding window, 0: none. Heads of a layer with a window are dense and not
  // searched: they attend to their window whatever a plan says.
  std::vector<int64_t> windows;

  const HeadChoice& at(int32_t layer, int32_t head) const {
    return heads[static_cast<size_t>(layer) * num_heads + head];
  }
  plan::HeadPlan plan() const;
};

// Reads a file of prompts in millrace-batch's format; ids and other fields of a line are ignored.
// Errors name the file and the line. kInvalidArgument: a line is not a prompt for this model, has
// no row that a plan could make sparse, or the file has no prompt. kTooLarge: a prompt is longer
// than `limits` allow.
Result<std::vector<std::vector<int32_t>>> read_prompts(const std::string& path,
                                                       const engine::PromptLimits& limits);

// Runs on one rank. `prompts`: from read_prompts. kInvalidArgument where `options.costs` are for
// layers of another shape; kUnsupported where every layer has a sliding window.
Result<Calibration> calibrate(engine::RankRuntime& runtime,
                              const std::vector<std::vector<int32_t>>& prompts,
                              const CalibrationOptions& options);

}  // namespace millrace::calibrate
