// Ranks agree on whether to go on. A failure on one rank (a full disk, a refused reservation) must
// stop all of them at the same point, or the next collective waits for a rank that has left.
#pragma once

#include "comm/api/communicator.h"
#include "common/result.h"

namespace millrace::worker {

// Collective. Ok on every rank when `own` is ok on every rank; else the error of the lowest failing
// rank, everywhere, with "rank R: " in front.
Result<void> agree(comm::Communicator& world, const Result<void>& own, Deadline deadline);

}  // namespace millrace::worker
