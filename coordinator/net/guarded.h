// SPDX-License-Identifier: Apache-2.0
// Coroutines that run next to all others: an exception (out of memory, a library's length_error)
// ends only the coroutine that threw it.
#pragma once

#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <string>

#include "common/log.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

inline void log_exception(const std::exception_ptr& thrown, const std::string& where) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    spdlog::error("{}: exception: {}", where, e.what());
  } catch (...) {
    spdlog::error("{}: exception of an unknown type", where);
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
