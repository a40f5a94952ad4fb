// SPDX-License-Identifier: Apache-2.0
// Finds, at a group's start, the cached pages that its former run kept
// (docs/adr/0018-prefixes-outlive-their-group.md), and tells of them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "worker/events/group_cache.h"

namespace millrace::worker {

// Which pages a rank's store has cached (CachedPages::find_cached).
using FindPages = std::function<std::vector<bool>(std::span<const PageContentKey>)>;

// Collective over `world`, before the first prompt. Rank 0 reads the candidate pages from its
// journal at `journal_path`. The path is empty on other ranks, and where rank 0's store keeps
// nothing, since the file is then another process's. Of these pages, those count that a
// context-parallel rank has with all `num_tp_ranks` of its tensor-parallel ranks, and for which the
// same holds of all pages before them; the journal continues with them. `find`: which pages this
// rank has. An error of the journal is logged, and nothing counts. Returns, on rank 0, what the
// coordinator is to be told.
Result<protocol::CachedPrefixes> find_kept_prefixes(comm::Communicator& world, int num_tp_ranks,
                                                    const FindPages& find,
                                                    const std::string& journal_path,
                                                    GroupCache& cache, Deadline deadline);

}  // namespace millrace::worker
