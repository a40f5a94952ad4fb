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
  JournalFile::Contents contents;
};

Journal read_journal(const std::string& path, size_t most_pages) {
  Journal journal;
  if (path.empty()) return journal;
  auto file = JournalFile::open(path);
  auto contents = file.ok() ? file->read([](const PageContentKey&) { return true; }, most_pages)
                            : Result<JournalFile::Contents>(file.error());
  if (!contents.ok()) {
    log::warn("which prefixes are kept is not told, only found: {}", contents.error().to_string());
    return journal;
  }
  return {.file = *std::move(file), .contents = *std::move(contents)};
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

// A page is useful only with all pages before it. Events need its tokens, which are not there if
// the former run made none.
protocol::CachedPrefixes report_of(Journal journal, const std::vector<uint8_t>& held,
                                   size_t num_tp_ranks, GroupCache& cache) {
  const size_t num_pages = journal.contents.pages.size();
  std::unordered_set<PageContentKey, PageContentKeyHash> found;
  std::vector<StoredPage> pages;
  std::vector<std::vector<int>> owners;
  for (size_t i = 0; i < num_pages; ++i) {
    auto& page = journal.contents.pages[i];
    if (page.parent && !found.contains(*page.parent)) continue;
    if (cache.makes_events() && page.token_ids.empty()) continue;
    auto of_page = owners_of(held, num_pages, num_tp_ranks, i);
    if (of_page.empty()) continue;
    found.insert(page.key);
    if (!cache.makes_events()) page.token_ids.clear();
    pages.push_back(std::move(page));
    owners.push_back(std::move(of_page));
  }
  log::info("{} kept pages are there again, of {} that were noted", pages.size(), num_pages);
  return cache.start_with(
      {.pages = std::move(pages), .origins = std::move(journal.contents.origins)}, owners,
      *std::move(journal.file));
}

}  // namespace

Result<protocol::CachedPrefixes> find_kept_prefixes(comm::Communicator& world, int num_tp_ranks,
                                                    const FindPages& find,
                                                    const std::string& journal_path,
                                                    GroupCache& cache, Deadline deadline) {
  auto journal = read_journal(journal_path, cache.most_kept_pages());
  MR_ASSIGN_OR_RETURN(const auto keys, broadcast_keys(world, journal.contents.pages, deadline));
  std::vector<uint8_t> held;
  if (!keys.empty()) {
    MR_ASSIGN_OR_RETURN(held, gather_held(world, find(keys), deadline));
  }
  if (!journal.file) return protocol::CachedPrefixes();
  return report_of(std::move(journal), held, static_cast<size_t>(num_tp_ranks), cache);
}

}  // namespace millrace::worker
