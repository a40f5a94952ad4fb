// SPDX-License-Identifier: Apache-2.0
// Writes the prefix ledger's file on its own thread (common/system/background_writes.h), so that a
// disk that hangs holds up no prompt.
//
// A record is dropped if too many wait; the owner, which has them all, then writes the whole ledger
// when there is room again. A record that is cut off is ignored (ledger_file.h).
//
// The PrefixLedger owns it. Used by one thread.
#pragma once

#include <memory>
#include <optional>

#include "common/result.h"
#include "common/system/background_writes.h"
#include "worker/control/ledger_file.h"

namespace millrace::worker {

class LedgerWriter {
 public:
  // The most records that wait. That of a prompt of 131,072 tokens has 10 KB.
  static constexpr size_t kMostWaiting = BackgroundWrites::kMostWaiting;

  explicit LedgerWriter(LedgerFile file);

  // As LedgerFile's, done in the order of the calls. False: too many wait, and this one is dropped.
  bool append(LedgerRecord record);
  bool replace(LedgerRecord record);
  // Whether replace() is due and none is waiting.
  bool is_long() const;
  // The error that ended the writing, returned once.
  std::optional<Error> take_failure() { return writes_.take_failure(); }

 private:
  struct Ledger;
  bool add(LedgerRecord record, bool is_whole);

  std::shared_ptr<Ledger> ledger_;
  BackgroundWrites writes_;
};

}  // namespace millrace::worker
