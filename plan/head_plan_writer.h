// SPDX-License-Identifier: Apache-2.0
// Writes head plans as the JSON files that load_head_plan reads (plan/head_plan_json.h).
#pragma once

#include <span>
#include <string>

#include "common/result.h"
#include "plan/head_plan.h"

namespace millrace::plan {

// Our own form: the most frequent pattern (the first among equals) as the default, and by layer the
// heads that differ. Without min_recall, which no file has.
std::string plan_json(const HeadPlan& plan);

// MInference's form: every head of every layer. `scores`: how the search rated its choice, 0 to 1,
// [layers, heads]. kUnsupported names the first head whose pattern does not exist there, that is,
// is not a-shape, vertical-slash or block-sparse.
Result<std::string> minference_plan_json(const HeadPlan& plan, std::span<const double> scores);

}  // namespace millrace::plan
