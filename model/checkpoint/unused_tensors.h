// SPDX-License-Identifier: Apache-2.0
// What to make of the tensors of a checkpoint that a model has not read.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/checkpoint/tensor_source.h"

namespace millrace::model {

// Lines that name all of them, alike ones together ("model.layers.*.mlp.gate_proj.input_scale
// (32)"), except those that somebody else reads. kUnsupported: one of them belongs to a weight that
// was read, as "X.weight_zero_point" to "X.weight", so that the weight would be another one with
// it. The message names it.
Result<std::vector<std::string>> report_unused(
    const TensorSource& tensors, const std::function<bool(std::string_view)>& read_elsewhere);

}  // namespace millrace::model
