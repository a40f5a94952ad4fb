// Coroutines that run beside all others: what one of them throws (memory that is not there, a
// library's length_error) ends it and nothing else.
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

// Starts `work`; `where` stands in the log if it throws.
template <typename Executor>
void spawn_guarded(Executor&& executor, awaitable<void> work, std::string where) {
  asio::co_spawn(executor, std::move(work),
                 [where = std::move(where)](const std::exception_ptr& thrown) {
                   log_exception(thrown, where);
                 });
}

}  // namespace millrace::coordinator
