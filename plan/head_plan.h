// SPDX-License-Identifier: Apache-2.0
// A head plan: what each query head of each layer attends to, before any request is seen.
//
// Written as text on the command line and in requests (plan/head_pattern.h), or as a JSON
// file: either one of MInference's pattern files, unchanged (a list over layers of {"head":
// [pattern, p1, p2, score]}), or our own form
//   {"default": "adaptive", "layers": [{"heads": {"0": "dense", "3": "a-shape:64,1024"}},
//   ...]}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "kernels/api/estimation.h"
#include "model/config/config.h"
#include "plan/head_pattern.h"

namespace millrace::plan {

// What an adaptive pattern requires of the device.
kernels::AdaptiveRule adaptive_rule(const HeadPattern& head);

// Its dimensions are those of a model; make_head_plan checks them.
class HeadPlan {
 public:
  HeadPlan(int32_t num_layers, int32_t num_heads, HeadPattern everywhere);

  int32_t num_layers() const { return num_layers_; }
  int32_t num_heads() const { return num_heads_; }
  const HeadPattern& at(int32_t layer, int32_t head) const;
  HeadPattern& at(int32_t layer, int32_t head);
  const std::string& name() const { return name_; }  // the text or file it came from
  void set_name(std::string name) { name_ = std::move(name); }
  // Heads that run densely because the prompt is too short for their budgets (plan_for_length.h).
  int64_t dense_for_length() const { return dense_for_length_; }
  void set_dense_for_length(int64_t heads) { dense_for_length_ = heads; }

  bool operator==(const HeadPlan&) const = default;

 private:
  int32_t num_layers_;
  int32_t num_heads_;
  std::vector<HeadPattern> patterns_;
  std::string name_;
  int64_t dense_for_length_ = 0;
};

struct HeadPlanOptions {
  // Whether `spec` may be a path. Off for plans that come with a request: a client must not be able
  // to make a rank read files on its machine.
  bool allow_files = true;
  // For all adaptive heads, where it is more than their own (kernels::AdaptiveRule).
  // kInvalidArgument when the plan has sparse heads that are not adaptive: their recall is not
  // known beforehand.
  double min_recall = 0;
};

// `spec` is the text form, the path of a JSON file, or "auto": dense when num_tokens is below
// `crossover_tokens`, else adaptive with its defaults. Also kInvalidArgument when a file's number
// of layers or heads differs from the model's (names both). In layers where the model itself
// attends to a window every head is dense, whatever `spec` says: it attends to all keys of its
// window.
Result<HeadPlan> make_head_plan(const std::string& spec, const model::ModelConfig& config,
                                int64_t num_tokens, int64_t crossover_tokens,
                                const HeadPlanOptions& options = {});

}  // namespace millrace::plan
