#include "worker/store/cached_prefix.h"

#include <algorithm>
#include <cstddef>
#include <thread>

#include "worker/ranks/rank_values.h"

namespace millrace::worker {

namespace {

// A thread is worth it for so many pages: of an 8B model, 64 MiB, some 10 ms.
constexpr int64_t kLeastPages = 8;

// Which pages every rank has: [ranks, pages].
Result<std::vector<std::byte>> gather_flags(comm::Communicator& world, const std::vector<bool>& own,
                                            Deadline deadline) {
  std::vector<std::byte> flags;
  for (const bool flag : own) flags.push_back(std::byte{flag});
  std::vector<std::byte> all(flags.size() * static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()), std::ssize(flags));
  MR_RETURN_IF_ERROR(world.all_gather(flags, all, counts, deadline));
  return all;
}

// The context-parallel rank that has each page, up to the first that none has.
std::vector<int> find_owners(const std::vector<std::byte>& flags, GridShape grid,
                             size_t num_pages) {
  const auto has = [&](int cp_rank, size_t page) {
    for (int tp_rank = 0; tp_rank < grid.tp; ++tp_rank) {
      const auto rank = static_cast<size_t>(cp_rank) * static_cast<size_t>(grid.tp) +
                        static_cast<size_t>(tp_rank);
      if (flags[rank * num_pages + page] == std::byte{0}) return false;
    }
    return true;
  };
  std::vector<int> owners;
  for (size_t page = 0; page < num_pages; ++page) {
    int owner = 0;
    while (owner < grid.cp && !has(owner, page)) ++owner;
    if (owner == grid.cp) break;
    owners.push_back(owner);
  }
  return owners;
}

// Of `keys`, those before the first damaged one. Each thread has every num_threads-th page: pages that
// lie together, on disk or in one tier, are shared out evenly. The store takes its lock for a page at a
// time and none while it reads.
int64_t num_intact(kvstore::KvStore& store, std::span<const PageContentKey> keys,
                   const PrefixCheck& check) {
  const auto stride = static_cast<size_t>(
      std::clamp<int64_t>(std::ssize(keys) / kLeastPages, 1, std::max(1, check.num_threads)));
  std::vector<size_t> first_damaged(stride, keys.size());
  const auto check_some = [&](size_t thread) {
    std::vector<PageContentKey> own;
    for (size_t i = thread; i < keys.size(); i += stride) own.push_back(keys[i]);
    const auto intact = store.check_cached(own, check.pages);
    const auto damaged = static_cast<size_t>(std::ranges::find(intact, false) - intact.begin());
    if (damaged < own.size()) first_damaged[thread] = thread + damaged * stride;
  };
  {
    std::vector<std::jthread> others;
    for (size_t thread = 1; thread < stride; ++thread) others.emplace_back(check_some, thread);
    check_some(0);
  }
  return static_cast<int64_t>(*std::ranges::min_element(first_damaged));
}

}  // namespace

CachedPrefix CachedPrefix::of(std::vector<int> owners, std::span<const PageContentKey> keys,
                              int rank) {
  CachedPrefix cached{.prefix = {.owners = std::move(owners)}};
  for (const int64_t page : cached.prefix.pages(rank)) {
    cached.own.push_back({.page = page, .key = keys[static_cast<size_t>(page)]});
  }
  return cached;
}

Result<CachedPrefix> agree_on_prefix(kvstore::KvStore& store, const RankGrid& grid,
                                     std::span<const PageContentKey> keys, Deadline deadline,
                                     const PrefixCheck& check) {
  MR_ASSIGN_OR_RETURN(const auto flags,
                      gather_flags(grid.world(), store.find_cached(keys), deadline));
  auto owners = find_owners(flags, grid.shape(), keys.size());
  const int rank = grid.cp().rank();
  const auto found = CachedPrefix::of(owners, keys, rank);
  std::vector<PageContentKey> own_keys;
  for (const auto& cached : found.own) own_keys.push_back(cached.key);
  const int64_t damaged = num_intact(store, own_keys, check);
  const int64_t own_end = damaged == std::ssize(found.own)
                              ? found.prefix.num_pages()
                              : found.own[static_cast<size_t>(damaged)].page;
  MR_ASSIGN_OR_RETURN(const auto ends, gather_values(grid.world(), own_end, deadline));
  owners.resize(static_cast<size_t>(*std::ranges::min_element(ends)));
  return CachedPrefix::of(std::move(owners), keys, rank);
}

}  // namespace millrace::worker
