// The end of a rank that cannot end in good order.
#pragma once

#include "common/result.h"

namespace millrace::worker {

// Logs why and ends the process with status 2, as every rank of a broken group ends. No destructor
// runs: memory that a GPU or a peer still uses cannot be freed, and waiting for it would have no
// deadline.
[[noreturn]] void end_rank(const Error& why) noexcept;

}  // namespace millrace::worker
