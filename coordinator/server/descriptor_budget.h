// SPDX-License-Identifier: Apache-2.0
// How many connections of each kind a coordinator may have with the descriptors that the system
// lets it have, so that health probes, groups and clients never take them from each other. Pure.
#pragma once

#include <cstdint>

namespace millrace::coordinator {

struct DescriptorBudget {
  // What is wanted, as far as `descriptors` reach. The `own` ones of the process come first, then
  // health probes, strangers and groups, each up to a quarter of what is left; clients get the rest.
  // Nothing falls below one.
  static DescriptorBudget of(int64_t descriptors, int64_t own, const DescriptorBudget& wanted);

  int connections = 0;    // of clients
  int health_probes = 0;  // of kHealthProbe and of kAdmin, each
  int strangers = 0;      // on the group port
  int groups = 0;

  bool operator==(const DescriptorBudget&) const = default;
};

}  // namespace millrace::coordinator
