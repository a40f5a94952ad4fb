// SPDX-License-Identifier: Apache-2.0
#include "worker/events/kept_prefixes.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/log.h"
#include "worker/events/journal_file.h"

namespace millrace::worker {

namespace {

struct Journal {
  std::optional<JournalFile> file;  // none: nothing is written
  std::vector<StoredPage> pages;
};

Journal read_journal(const std::string& path) {
  Journal journal;
  if (path.empty()) return journal;
  auto file = JournalFile::open(path);
  auto pages = file.ok() ? file->read([](const PageContentKey&) { return true; })
                         : Result<std::vector<StoredPage>>(file.error());
  if (!pages.ok()) {
    log::warn("which pages are kept is not published, only found: {}", pages.error().to_string());
    return journal;
  }
  return {.file = *std::move(file), .pages = *std::move(pages)};
}

// Returns rank 0's keys on all ranks.
Result<std::vector<PageContentKey>> broadcast_keys(comm::Communicator& world,
                                                   const std::vector<StoredPage>& pages,
                                                   Deadline deadline) {
  int64_t num_keys = std::ssize(pages);
  MR_RETURN_IF_ERROR(
      world.broadcast(std::as_writable_bytes(std::span(&num_keys, 1)), /*root=*/0, deadline));
  std::vector<PageContentKey> keys;
  keys.reserve(static_cast<size_t>(num_keys));
  for (const auto& page : pages) keys.push_back(page.key);
  keys.resize(static_cast<size_t>(num_keys));
  if (num_keys > 0) {
    MR_RETURN_IF_ERROR(
        world.broadcast(std::as_writable_bytes(std::span(keys)), /*root=*/0, deadline));
  }
  return keys;
}

// Which of the pages each rank has: [ranks, pages].
Result<std::vector<uint8_t>> gather_held(comm::Communicator& world, const std::vector<bool>& own,
                                         Deadline deadline) {
  const std::vector<uint8_t> sent(own.begin(), own.end());
  std::vector<uint8_t> all(sent.size() * static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()), std::ssize(sent));
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(sent)),
                                      std::as_writable_bytes(std::span(all)), counts, deadline));
  return all;
}

// Context-parallel ranks that have a page with all their tensor-parallel ranks.
std::vector<int> owners_of(const std::vector<uint8_t>& held, size_t num_pages, size_t num_tp_ranks,
                           size_t page) {
  const size_t num_ranks = held.size() / num_pages;
  std::vector<int> owners;
  for (size_t first = 0; first < num_ranks; first += num_tp_ranks) {
    size_t num_held = 0;
    for (size_t rank = first; rank < first + num_tp_ranks; ++rank) {
      num_held += held[rank * num_pages + page];
    }
    if (num_held == num_tp_ranks) owners.push_back(static_cast<int>(first / num_tp_ranks));
  }
  return owners;
}

// A page is useful only with all pages before it.
void publish(Journal journal, const std::vector<uint8_t>& held, size_t num_tp_ranks,
             CacheEvents& events) {
  const size_t num_pages = journal.pages.size();
  std::unordered_set<PageContentKey, PageContentKeyHash> found;
  std::vector<StoredPage> pages;
  std::vector<std::vector<int>> owners;
  for (size_t i = 0; i < num_pages; ++i) {
    auto& page = journal.pages[i];
    if (page.parent && !found.contains(*page.parent)) continue;
    auto of_page = owners_of(held, num_pages, num_tp_ranks, i);
    if (of_page.empty()) continue;
    found.insert(page.key);
    pages.push_back(std::move(page));
    owners.push_back(std::move(of_page));
  }
  log::info("{} kept blocks are published, of {} that were noted", pages.size(), num_pages);
  events.start_with(std::move(pages), owners, *std::move(journal.file));
}

}  // namespace

Result<void> publish_kept_prefixes(comm::Communicator& world, int num_tp_ranks,
                                   const OwnPages::FindPages& find, const std::string& journal_path,
                                   CacheEvents& events, Deadline deadline) {
  auto journal = read_journal(journal_path);
  MR_ASSIGN_OR_RETURN(const auto keys, broadcast_keys(world, journal.pages, deadline));
  const auto own = find(keys);
  std::vector<uint8_t> held;
  if (!keys.empty()) {
    MR_ASSIGN_OR_RETURN(held, gather_held(world, own, deadline));
  }
  std::vector<PageContentKey> own_keys;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (own[i]) own_keys.push_back(keys[i]);
  }
  events.add_own(own_keys);
  if (journal.file) publish(std::move(journal), held, static_cast<size_t>(num_tp_ranks), events);
  return {};
}

}  // namespace millrace::worker
