// SPDX-License-Identifier: Apache-2.0
// Ranks of a group must have been started with the same model, version and options. A rank that
// differs computes a different cache, or waits in a different collective.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"

namespace millrace::engine {

struct NamedValue {
  std::string_view name;  // as the operator knows it: "--tp", "model"
  std::string value;
};

// Collective. Ok when all ranks have the same values. Otherwise kInvalidArgument on all of them,
// naming the first value that differs and which ranks have which. `version` is compared first,
// since ranks of another version may have other names.
Result<void> require_equal(comm::Communicator& world, std::string_view version,
                           const std::vector<NamedValue>& values, Deadline deadline);

}  // namespace millrace::engine
