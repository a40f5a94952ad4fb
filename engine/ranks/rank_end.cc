// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/rank_end.h"

#include <cstdlib>

#include "common/log.h"

namespace millrace::engine {

void end_rank(const Error& why) noexcept {
  log::critical("{}; this rank ends", why.to_string());
  log::flush();
  std::_Exit(2);
}

}  // namespace millrace::engine
