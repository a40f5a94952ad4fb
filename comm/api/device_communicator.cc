// SPDX-License-Identifier: Apache-2.0
#include "comm/api/device_communicator.h"

namespace millrace::comm {

CommStats sum_of(const CommStatsByName& stats) {
  CommStats sum;
  for (const auto& [what, counted] : stats) {
    sum.calls += counted.calls;
    sum.bytes_received += counted.bytes_received;
    sum.seconds += counted.seconds;
  }
  return sum;
}

}  // namespace millrace::comm
