// Which beginnings of prompts the group has cached, as rank 0 can tell: what its coordinator is told
// (protocol::CachedPrefixes). Rank 0's, the engine's thread.
//
// A beginning of 512 tokens and more is taken as cached while this rank's deepest page of it is. Context-parallel
// ranks give up pages by the same rule, so what others have of it is there as well, but for the last
// few pages; a rank that lacks some says so when the prompt comes.
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
  std::span<const PageContentKey> page_keys;  // of its pages that are shared, from the first on
  std::vector<int64_t> own_pages;             // those on this rank, ascending
  uint64_t origin = 0;
  uint64_t tenant = 0;
};

class PrefixLedger {
 public:
  // As the coordinator (coordinator/groups/known_prefixes.h): beginnings beyond these are not told.
  static constexpr size_t kMaxPrefixKeys = 65'536;

  // Which pages this rank has cached.
  using FindPages = std::function<std::vector<bool>(std::span<const PageContentKey>)>;

  // From here on what is added is in `file` too. Returns what it has of an earlier life, as far as its pages are found.
  protocol::CachedPrefixes keep_in(LedgerFile file, const FindPages& find);
  // What add() returned, with its origins, for the group's next start. Never waits for the disk. Nothing without a file.
  void keep(const protocol::CachedPrefixes& added);
  // What is new.
  protocol::CachedPrefixes add(const RememberedPrompt& prompt);
  // What has given way since. `num_given_up`: pages that the store has given up since it began. Where
  // that has changed, all beginnings are looked at.
  protocol::CachedPrefixes sweep(int64_t num_given_up, const FindPages& find);

 private:
  LedgerRecord all() const;
  void give_up(const Error& failure);

  std::unordered_map<uint64_t, PageContentKey> deepest_;  // page of this rank, by stored key
  std::optional<LedgerWriter> writer_;
  bool is_behind_ = false;  // the file lacks what the writer could not take
  int64_t num_given_up_ = 0;
};

}  // namespace millrace::worker
