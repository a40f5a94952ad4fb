// What events have told of, noted for the group's next start: a JournalFile, written by a thread that nobody waits for. What
// it drops, since the disk does not keep up, the next start does not tell of until a prompt begins with it.
//
// Bounded: when it has twice as many records as are read, those that the group has no more are left out, and the last ones
// beyond JournalFile::kMaxPages.
//
// Rank 0's, where there are events and pages are kept. The engine's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "common/files/background_writes.h"
#include "worker/events/journal_file.h"
#include "worker/events/kv_event.h"

namespace millrace::worker {

class PageJournal {
 public:
  using Held = std::unordered_set<BlockHash>;

  // `most_records`: for tests.
  explicit PageJournal(JournalFile file, size_t most_records = 2 * JournalFile::kMaxPages);

  // At the start: these and no others.
  void begin_with(std::vector<StoredPage> pages);
  // Pages that the group did not have before. `held`: makes what it has, these among it.
  void add(std::vector<StoredPage> pages, const std::function<Held()>& held);

 private:
  // Whether it is going to be done.
  bool write(BackgroundWrites::Write task);

  const size_t most_records_;
  std::shared_ptr<JournalFile> file_;       // the thread's
  std::optional<BackgroundWrites> writes_;  // none after a failure
  size_t num_records_ = 0;                  // in the file, at most
  bool is_behind_ = false;                  // the last one was dropped
};

}  // namespace millrace::worker
