// How much of the machine is this process's.
#pragma once

namespace millrace {

// Cores that its threads may run on (sched_getaffinity); 1 where the system does not say.
int usable_cores();

}  // namespace millrace
