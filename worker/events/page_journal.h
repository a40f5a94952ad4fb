// SPDX-License-Identifier: Apache-2.0
// Writes down which pages the group has cached, for its next start: a JournalFile, written by a
// thread that nobody waits for. When the disk does not keep up, pages are dropped; the next start
// does not tell of those until a prompt begins with them.
//
// Bounded: when the file has twice as many pages as are read, it drops those that the group no
// longer has, and the last ones beyond that.
//
// Rank 0 only, where pages are kept. Used by the engine's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>

#include "common/system/background_writes.h"
#include "worker/events/journal_file.h"
#include "worker/events/kv_event.h"

namespace millrace::worker {

class PageJournal {
 public:
  using Held = std::unordered_set<BlockHash>;

  // `most_pages`: that the next start reads.
  PageJournal(JournalFile file, size_t most_pages);

  // At the start: replaces the contents.
  void begin_with(JournalFile::Contents contents);
  // Adds pages that the group did not have before, and the plan of their prompt. `held`: returns
  // all pages that it has, these included.
  void add(JournalFile::Contents contents, const std::function<Held()>& held);

 private:
  // Returns whether the write will be done.
  bool write(BackgroundWrites::Write task);

  const size_t most_pages_;
  std::shared_ptr<JournalFile> file_;       // used by the writing thread
  std::optional<BackgroundWrites> writes_;  // none after a failure
  size_t num_pages_ = 0;                    // in the file, at most
  bool is_behind_ = false;                  // the last one was dropped
};

}  // namespace millrace::worker
