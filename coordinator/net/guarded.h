// SPDX-License-Identifier: Apache-2.0
// Coroutines that run next to all others: an exception (out of memory, a library's length_error)
// ends only the coroutine that threw it.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <string>

#include "common/log.h"
#include "common/logging/paced_line.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

inline void log_exception(const std::exception_ptr& thrown, const std::string& where) {
  if (!thrown) return;
  static PacedLine line({.burst = 10});  // clients may be the cause
  const auto times = line.due();
  if (!times) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    log::error("{}: exception: {}{}", where, e.what(), PacedLine::others(*times));
  } catch (...) {
    log::error("{}: exception of an unknown type{}", where, PacedLine::others(*times));
  }
}

// Starts `work`; if it throws, `where` is in the log line.
template <typename Executor>
void spawn_guarded(Executor&& executor, awaitable<void> work, std::string where) {
  asio::co_spawn(executor, std::move(work),
                 [where = std::move(where)](const std::exception_ptr& thrown) {
                   log_exception(thrown, where);
                 });
}

}  // namespace millrace::coordinator
