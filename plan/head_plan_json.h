// SPDX-License-Identifier: Apache-2.0
// Head plans from JSON files: our own form and MInference's (plan/head_plan.h shows both).
#pragma once

#include <string>

#include "common/result.h"
#include "plan/head_plan.h"

namespace millrace::plan {

// kNotFound; kInvalidArgument (names the file, layer and head; both numbers where the file is for a
// model of another size); kTooLarge.
Result<HeadPlan> load_head_plan(const std::string& path, const model::ModelConfig& config);

}  // namespace millrace::plan
