// SPDX-License-Identifier: Apache-2.0
// How a rank ends that can neither go on nor end in good order: memory that a GPU or a peer still uses
// cannot be freed, and waiting for it would have no deadline.
#pragma once

#include <exception>
#include <functional>
#include <utility>

#include "common/result.h"

namespace millrace::engine {

// Called by such a rank, on any thread. Only a main may end a process, so a main supplies the handler,
// end_rank. If the handler returns all the same, as in a test, the caller fails with the error.
using EndHandler = std::function<void(const Error& why)>;

// Logs why and ends the process with status 2, as every rank of a broken group does. No destructor
// runs.
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

}  // namespace millrace::engine
