// SPDX-License-Identifier: Apache-2.0
// What every Communicator promises, as cases that all ranks of a group run together. The test of an
// implementation gives each rank its communicator, and runs every case on a fresh group, since some
// cases leave it broken.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "comm/api/communicator.h"

namespace millrace::comm {

struct CommunicatorCase {
  std::string name;
  std::function<void(Communicator&)> body;
};

std::vector<CommunicatorCase> communicator_contract();

inline void PrintTo(const CommunicatorCase& test_case, std::ostream* out) {
  *out << test_case.name;
}

}  // namespace millrace::comm
