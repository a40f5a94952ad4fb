// What a group publishes at its start of pages that its former life kept (docs/kv-events.md).
#pragma once

#include <string>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "worker/events/cache_events.h"
#include "worker/events/own_pages.h"

namespace millrace::worker {

// Collective over `world`, before the first prompt. Rank 0 reads which pages there may be from its journal at `journal_path`,
// which is empty elsewhere, and where its store keeps nothing: then the file is another process's. Of these pages, those that a
// context-parallel rank has, with all `num_tp_ranks` of its tensor-parallel ranks, and all pages before them, are
// published, and the journal goes on with them. `find`: which pages this rank has. What is wrong with the journal is
// logged, and nothing is published.
Result<void> publish_kept_pages(comm::Communicator& world, int num_tp_ranks,
                                const OwnPages::FindPages& find, const std::string& journal_path,
                                CacheEvents& events, Deadline deadline);

}  // namespace millrace::worker
