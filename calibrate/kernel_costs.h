// SPDX-License-Identifier: Apache-2.0
// What kernels cost on a device, in units of one block of dense attention: 64 rows x 64 keys of one
// query head. Makes the times of patterns comparable before one is chosen.
//
// Why a cost model instead of each candidate's measured time: a clock's times, and with them the
// plan, differ from run to run. Here a few ratios are measured once, each from whole layers of
// random vectors (measure_costs.h), and rounded to steps of 2^(1/4), 19 %, which is more than the
// variation on a quiet machine from run to run. A candidate's time is then computed from the number
// of blocks and gathers of its real index. So a plan follows from model, prompts, options and these
// five numbers, which a file keeps: with the same file the plan is the same, byte for byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/dtype.h"
#include "common/result.h"

namespace millrace::calibrate {

// The layer that the costs hold for.
struct AttentionShape {
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;

  bool operator==(const AttentionShape&) const = default;
};

struct KernelCosts {
  std::string device;  // its name, for messages
  AttentionShape shape;
  int64_t num_tokens = 0;     // of the layers measured
  double listed_block = 1;    // a block of a band or a list
  double gathered_block = 1;  // 64 columns, gathered for 64 rows
  double probed_page = 1;     // vertical-slash, a head: finding the lists, a page of the prompt
  double pooled_block = 1;    // block-sparse, a head: finding the lists, a causal block
  double sampled_block = 1;   // adaptive, a head: the same, a causal block and a sampled row

  bool operator==(const KernelCosts&) const = default;
};

// The power of 2^(1/4) nearest to `cost`, which must be greater than 0, to four digits.
double rounded_cost(double cost);

std::string costs_json(const KernelCosts& costs);
// kInvalidArgument names the field.
Result<KernelCosts> parse_costs(std::string_view text);

}  // namespace millrace::calibrate
