// SPDX-License-Identifier: Apache-2.0
// Writes down what events have reported, for the group's next start: a JournalFile, written by a
// thread that nobody waits for. When the disk does not keep up, pages are dropped; the next start
// does not publish those until a prompt begins with them.
//
// Bounded: when the file has twice as many records as are read, it drops those of pages that the
// group no longer has, and the last ones beyond JournalFile::kMaxPages.
//
// Rank 0 only, where there are events and pages are kept. Used by the engine's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "common/system/background_writes.h"
#include "worker/events/journal_file.h"
#include "worker/events/kv_event.h"

namespace millrace::worker {

class PageJournal {
 public:
  using Held = std::unordered_set<BlockHash>;

  // `most_records`: for tests.
  explicit PageJournal(JournalFile file, size_t most_records = 2 * JournalFile::kMaxPages);

  // At the start: replaces the contents with these pages.
  void begin_with(std::vector<StoredPage> pages);
  // Adds pages that the group did not have before. `held`: returns all that it has, these included.
  void add(std::vector<StoredPage> pages, const std::function<Held()>& held);

 private:
  // Returns whether the write will be done.
  bool write(BackgroundWrites::Write task);

  const size_t most_records_;
  std::shared_ptr<JournalFile> file_;       // used by the writing thread
  std::optional<BackgroundWrites> writes_;  // none after a failure
  size_t num_records_ = 0;                  // in the file, at most
  bool is_behind_ = false;                  // the last one was dropped
};

}  // namespace millrace::worker
