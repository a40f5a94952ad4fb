// SPDX-License-Identifier: Apache-2.0
// How many cores this process may use.
#pragma once

namespace millrace {

// Cores that its threads may run on (sched_getaffinity); 1 if the system does not say.
int usable_cores();

}  // namespace millrace
