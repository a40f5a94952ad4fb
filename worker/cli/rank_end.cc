// SPDX-License-Identifier: Apache-2.0
#include "worker/cli/rank_end.h"

#include <cstdlib>

#include "common/log.h"

namespace millrace::worker {

void end_rank(const Error& why) noexcept {
  spdlog::critical("{}; this rank ends", why.to_string());
  spdlog::default_logger()->flush();
  std::_Exit(2);
}

}  // namespace millrace::worker
