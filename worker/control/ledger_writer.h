// Writes the prefix ledger's file on a thread of its own (common/files/background_writes.h), so that a disk that hangs holds
// up no prompt.
//
// Where a record is dropped, since too many wait, whoever has them all writes the whole when there is room again. One that
// is cut off counts as not there (ledger_file.h).
//
// The PrefixLedger owns it. Threads: one.
#pragma once

#include <memory>
#include <optional>

#include "common/files/background_writes.h"
#include "common/result.h"
#include "worker/control/ledger_file.h"

namespace millrace::worker {

class LedgerWriter {
 public:
  // Of a prompt of 131,072 tokens 10 KB.
  static constexpr size_t kMostWaiting = BackgroundWrites::kMostWaiting;

  explicit LedgerWriter(LedgerFile file);

  // As of LedgerFile, in the order of the calls. False: too many wait, and this one is dropped.
  bool append(LedgerRecord record);
  bool replace(LedgerRecord record);
  // replace() is due, and none waits.
  bool is_long() const;
  // What has ended the writing, once.
  std::optional<Error> take_failure() { return writes_.take_failure(); }

 private:
  struct Ledger;
  bool add(LedgerRecord record, bool is_whole);

  std::shared_ptr<Ledger> ledger_;
  BackgroundWrites writes_;
};

}  // namespace millrace::worker
