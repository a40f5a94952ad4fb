// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/descriptor_budget.h"

#include <algorithm>

namespace millrace::coordinator {

DescriptorBudget DescriptorBudget::of(int64_t descriptors, int64_t own,
                                      const DescriptorBudget& wanted) {
  int64_t left = std::max<int64_t>(0, descriptors - own);
  // `parts` places of each kind of connection take a descriptor each, and at most `share` of what
  // is left.
  const auto take = [&left](int most, int64_t parts, int64_t share) {
    const int64_t each = std::clamp<int64_t>(left / (share * parts), 1, std::max(1, most));
    left = std::max<int64_t>(0, left - parts * each);
    return static_cast<int>(each);
  };
  DescriptorBudget budget;
  budget.health_probes = take(wanted.health_probes, 2, 4);
  budget.strangers = take(wanted.strangers, 1, 4);
  budget.groups = take(wanted.groups, 1, 4);
  budget.connections = take(wanted.connections, 1, 1);
  return budget;
}

}  // namespace millrace::coordinator
