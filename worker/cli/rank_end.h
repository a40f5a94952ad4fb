// SPDX-License-Identifier: Apache-2.0
// Ends a rank that cannot end in good order.
#pragma once

#include <exception>
#include <utility>

#include "common/result.h"

namespace millrace::worker {

// Logs why and ends the process with status 2, as every rank of a broken group does. No destructor
// runs: memory that a GPU or a peer still uses cannot be freed, and waiting for it would have no
// deadline.
[[noreturn]] void end_rank(const Error& why) noexcept;

// Returns what `body` returns. A failed GPU (CudaError), or memory exhausted where nothing is
// prepared for it, throws: the other ranks have then lost this rank, and it ends at once.
template <typename Body>
auto or_end_rank(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& e) {
    end_rank(Error(Errc::kInternal, e.what()));
  }
}

}  // namespace millrace::worker
