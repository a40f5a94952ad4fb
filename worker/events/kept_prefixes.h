// SPDX-License-Identifier: Apache-2.0
// Publishes, at a group's start, the pages that its former run kept (docs/kv-events.md).
#pragma once

#include <string>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "worker/events/cache_events.h"
#include "worker/events/own_pages.h"

namespace millrace::worker {

// Collective over `world`, before the first prompt. Rank 0 reads the candidate pages from its
// journal at `journal_path`. The path is empty on other ranks, and where rank 0's store keeps
// nothing, since the file is then another process's. Of these pages, those are published that a
// context-parallel rank has with all `num_tp_ranks` of its tensor-parallel ranks, and for which the
// same holds of all pages before them; the journal continues with them. `find`: which pages this
// rank has. An error of the journal is logged, and nothing is published.
Result<void> publish_kept_prefixes(comm::Communicator& world, int num_tp_ranks,
                                   const OwnPages::FindPages& find, const std::string& journal_path,
                                   CacheEvents& events, Deadline deadline);

}  // namespace millrace::worker
