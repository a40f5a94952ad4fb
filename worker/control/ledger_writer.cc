// SPDX-License-Identifier: Apache-2.0
#include "worker/control/ledger_writer.h"

#include <atomic>
#include <utility>

namespace millrace::worker {

// Shared with the writes, the last of which may outlive the writer.
struct LedgerWriter::Ledger {
  explicit Ledger(LedgerFile ledger) : file(std::move(ledger)) {}

  LedgerFile file;  // used by the writing thread alone
  std::atomic<bool> is_long = false;
  std::atomic<int> num_wholes_waiting = 0;
};

LedgerWriter::LedgerWriter(LedgerFile file) : ledger_(std::make_shared<Ledger>(std::move(file))) {}

bool LedgerWriter::add(LedgerRecord record, bool is_whole) {
  if (is_whole) ++ledger_->num_wholes_waiting;
  const bool is_taken =
      writes_.add([ledger = ledger_, record = std::move(record), is_whole]() -> Result<void> {
        auto written = is_whole ? ledger->file.replace(record) : ledger->file.append(record);
        ledger->is_long = ledger->file.is_long();
        if (is_whole) --ledger->num_wholes_waiting;
        return written;
      });
  if (is_whole && !is_taken) --ledger_->num_wholes_waiting;
  return is_taken;
}

bool LedgerWriter::append(LedgerRecord record) {
  return add(std::move(record), /*is_whole=*/false);
}

bool LedgerWriter::replace(LedgerRecord record) {
  return add(std::move(record), /*is_whole=*/true);
}

bool LedgerWriter::is_long() const {
  return ledger_->is_long && ledger_->num_wholes_waiting == 0;
}

}  // namespace millrace::worker
