// Ranks of a group must have been started with the same model, version and options: a rank with
// others computes another cache, or waits in another collective.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"

namespace millrace::worker {

struct NamedValue {
  std::string_view name;  // as the operator knows it: "--tp", "model"
  std::string value;
};

// Collective. Ok when all ranks have the same values; else kInvalidArgument on all of them: names the
// first value that differs, and who has which. Ranks of another version may have other names:
// `version` is compared first.
Result<void> require_equal(comm::Communicator& world, std::string_view version,
                           const std::vector<NamedValue>& values, Deadline deadline);

}  // namespace millrace::worker
