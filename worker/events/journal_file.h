// SPDX-License-Identifier: Apache-2.0
// The pages that a group has cached, on disk next to those that it keeps for its next start, whose
// own files know neither the order of pages nor their tokens. A record counts only if its page is
// found, so the journal need not be complete, only right: each record has a checksum
// (common/system/record_file.h). Rank 0 only, under the lock of the archive, so nobody else has the
// file.
//
// A record of a page: 'P', the key (32), the parent's key (32; zeros: none), the prefix key (8), the
// number of token ids (4), these (4 each), the salt. A record of a plan: 'O' and a serialised
// PlanOrigin.
//
// Threads: one at a time; any call may hang with the disk (page_journal.h). Errors: kIo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/system/record_file.h"
#include "protocol/control_messages.pb.h"
#include "worker/events/stored_page.h"

namespace millrace::worker {

class JournalFile {
 public:
  // Pages read at most: 33.6 million tokens, as many as a coordinator knows of. With tokens, 8.4
  // million.
  static constexpr size_t kMaxPages = 524'288;
  static constexpr size_t kMaxPagesWithTokens = 131'072;
  static constexpr size_t kMaxOrigins = 64;  // the latest
  // A longer file is not read further, and is begun anew. Room for twice as many pages, and for
  // salts.
  static constexpr int64_t kMaxBytes = int64_t{160} << 20;

  struct Contents {
    std::vector<StoredPage> pages;
    std::vector<protocol::PlanOrigin> origins;
  };
  using Filter = std::function<bool(const PageContentKey&)>;

  static Result<JournalFile> open(const std::string& path);

  // The first `most_pages` of the wanted pages, each once and behind its parent; a page whose
  // parent is not among them is left out.
  Result<Contents> read(const Filter& is_wanted, size_t most_pages) const;
  Result<void> append(const Contents& contents);
  // Replaces the contents with these.
  Result<void> replace(const Contents& contents);

 private:
  explicit JournalFile(RecordFile file) : file_(std::move(file)) {}

  RecordFile file_;
};

}  // namespace millrace::worker
