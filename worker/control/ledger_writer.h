// Writes the prefix ledger's file on a thread of its own, so that a disk that hangs holds up no prompt.
//
// Few records wait at a time: a disk that does not keep up, or hangs, costs those that come meanwhile, and whoever has them
// all writes the whole when there is room again. Who ends in good order waits for what is left for kPatience; a write
// that hangs then is left to the system, and a record that is cut off counts as not there (ledger_file.h).
//
// The PrefixLedger owns it. Threads: one; the writer's own is behind it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/result.h"
#include "worker/control/ledger_file.h"

namespace millrace::worker {

class LedgerWriter {
 public:
  // Of a prompt of 131,072 tokens 10 KB.
  static constexpr size_t kMostWaiting = 64;
  static constexpr Duration kPatience = std::chrono::seconds(1);

  explicit LedgerWriter(LedgerFile file);
  ~LedgerWriter();
  LedgerWriter(const LedgerWriter&) = delete;
  LedgerWriter& operator=(const LedgerWriter&) = delete;

  // As of LedgerFile, in the order of the calls. False: too many wait, and this one is dropped.
  bool append(LedgerRecord record);
  bool replace(LedgerRecord record);
  // replace() is due, and none waits.
  bool is_long() const;
  // What has ended the writing, once.
  std::optional<Error> take_failure();

 private:
  struct Shared;
  struct Task;
  bool add(Task task);
  static void write_all(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace millrace::worker
