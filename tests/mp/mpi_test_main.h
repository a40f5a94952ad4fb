// SPDX-License-Identifier: Apache-2.0
// The MPI session of a test binary that mpirun started; alive while tests run.
#pragma once

#include "comm/mpi/mpi_session.h"

namespace millrace::comm {

MpiSession& test_session();

}  // namespace millrace::comm
