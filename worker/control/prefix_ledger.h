// SPDX-License-Identifier: Apache-2.0
// Which beginnings of prompts the group has cached, as far as rank 0 can tell: what its coordinator
// is told (protocol::CachedPrefixes). On rank 0, the engine's thread.
//
// A beginning of 512 tokens or more counts as cached while this rank's deepest page of it is
// cached. Context-parallel ranks give up pages by the same rule, so the other ranks have their
// pages of it too, except perhaps the last few. A rank that lacks some says so when the prompt
// comes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/content/page_keys.h"
#include "protocol/control_messages.pb.h"
#include "worker/control/ledger_file.h"
#include "worker/control/ledger_writer.h"

namespace millrace::worker {

// What a prompt left in the cache.
struct RememberedPrompt {
  std::span<const uint64_t> prefix_keys;      // of its tokens (common/content/prefix_keys.h)
  std::span<const PageContentKey> page_keys;  // of its shared pages, from the first page on
  std::vector<int64_t> own_pages;             // its pages on this rank, ascending
  uint64_t origin = 0;
  uint64_t tenant = 0;
};

class PrefixLedger {
 public:
  // The coordinator's limit too (coordinator/groups/known_prefixes.h): further beginnings are not
  // told.
  static constexpr size_t kMaxPrefixKeys = 65'536;

  // Which pages this rank has cached.
  using FindPages = std::function<std::vector<bool>(std::span<const PageContentKey>)>;

  // Opens the ledger's file for keep(). Returns the beginnings in it from an earlier start whose
  // pages are found.
  protocol::CachedPrefixes keep_in(LedgerFile file, const FindPages& find);
  // Writes what add() returned, with its origins, to the file for the group's next start. Never
  // waits for the disk. Does nothing without a file.
  void keep(const protocol::CachedPrefixes& added);
  // Adds the prompt's beginnings. Returns those that are new.
  protocol::CachedPrefixes add(const RememberedPrompt& prompt);
  // Returns the beginnings that have gone since the last call. `num_given_up`: pages that the store
  // has given up since it began. Only if that has changed are all beginnings looked at.
  protocol::CachedPrefixes sweep(int64_t num_given_up, const FindPages& find);

 private:
  LedgerRecord all() const;
  void give_up(const Error& failure);

  std::unordered_map<uint64_t, PageContentKey> deepest_;  // page of this rank, by stored key
  std::optional<LedgerWriter> writer_;
  bool is_behind_ = false;  // the file lacks records that the writer dropped
  int64_t num_given_up_ = 0;
};

}  // namespace millrace::worker
