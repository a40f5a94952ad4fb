// SPDX-License-Identifier: Apache-2.0
#include "worker/store/cached_prefix.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "engine/ranks/rank_values.h"

namespace millrace::worker {

namespace {

// Fewer pages are not worth another thread. Eight of an 8B model are 64 MiB, some 10 ms.
constexpr int64_t kLeastPages = 8;
// Enough threads to keep a disk busy. Each has up to three kept pages in memory, in all layers and
// heads.
constexpr int kMostDiskReaders = 8;

// Where a rank has a page, as ranks tell each other: kNone; from kInMemory to kOnDisk by the share
// of it that is on disk; kKept.
using Place = uint8_t;
constexpr Place kNone = 0;
constexpr Place kInMemory = 1;
constexpr Place kOnDisk = 201;
constexpr Place kKept = 202;

Place place_of(const kvstore::CachedPlace& cached) {
  if (!cached.held) return kNone;
  if (cached.kept) return kKept;
  return static_cast<Place>(kInMemory + std::ceil(cached.share_on_disk * (kOnDisk - kInMemory)));
}

double share_on_disk(Place place) {
  if (place == kNone || place == kKept) return 0;
  return static_cast<double>(place - kInMemory) / (kOnDisk - kInMemory);
}

// Collective. The places of every rank: [ranks, pages].
Result<std::vector<Place>> gather_places(comm::Communicator& world,
                                         const std::vector<kvstore::CachedPlace>& cached,
                                         Deadline deadline) {
  std::vector<Place> own;
  for (const auto& place : cached) own.push_back(place_of(place));
  std::vector<Place> all(own.size() * static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()), std::ssize(own));
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(own)),
                                      std::as_writable_bytes(std::span(all)), counts, deadline));
  return all;
}

// Where a context-parallel rank has a page: the farthest place of any of its heads, kNone where a
// head is nowhere.
Place farthest_place(const std::vector<Place>& places, int tp, int cp_rank, size_t num_pages,
                     size_t page) {
  Place farthest = kNone;
  const auto first = static_cast<size_t>(cp_rank) * static_cast<size_t>(tp);
  for (size_t rank = first; rank < first + static_cast<size_t>(tp); ++rank) {
    const Place place = places[rank * num_pages + page];
    if (place == kNone) return kNone;
    farthest = std::max(farthest, place);
  }
  return farthest;
}

// The context-parallel rank that has each page nearest, up to the first page that no rank has.
std::vector<int> find_owners(const std::vector<Place>& places, engine::GridShape grid,
                             size_t num_pages, const PrefixCheck& check) {
  std::vector<int> owners;
  for (size_t page = 0; page < num_pages; ++page) {
    int owner = -1;
    Place nearest = kNone;
    for (int turn = 0; turn < grid.cp; ++turn) {
      const int cp_rank = check.lane < 0 ? turn : (check.lane + turn) % grid.cp;
      if (check.lane_alone && cp_rank != check.lane) continue;
      const Place place = farthest_place(places, grid.tp, cp_rank, num_pages, page);
      if (place == kNone || (owner >= 0 && place >= nearest)) continue;
      owner = cp_rank;
      nearest = place;
    }
    if (owner < 0) break;
    owners.push_back(owner);
  }
  return owners;
}

// The time that a rank needs for a page in all its layers and heads, and what it knows of
// computing. For the latter, rank 0's values count for all ranks.
struct RankPace {
  double disk_page_s = 0;
  double kept_page_s = 0;
  RowCost rows;
  bool knows_rows = false;
  bool loads_beside = false;
};

RankPace pace_of(const kvstore::CachedPages& store, const PrefixCheck& check) {
  const auto& geometry = store.geometry();
  const double bytes =
      static_cast<double>(geometry.page_bytes()) * geometry.num_layers * geometry.num_kv_heads;
  const auto rates = store.read_rates();
  return {.disk_page_s = bytes / rates.disk,
          .kept_page_s = bytes / rates.kept,
          .rows = check.rows.value_or(RowCost()),
          .knows_rows = check.rows.has_value(),
          .loads_beside = check.loads_beside};
}

// A page takes as long as on the slowest of the tensor-parallel ranks that have its heads.
std::vector<SlowPage> slow_pages(const std::vector<int>& owners, const std::vector<Place>& places,
                                 const std::vector<RankPace>& ranks, int tp) {
  const size_t num_keys = places.size() / ranks.size();
  std::vector<SlowPage> pages;
  for (size_t page = 0; page < owners.size(); ++page) {
    SlowPage& slow = pages.emplace_back(SlowPage{.owner = owners[page]});
    const auto first = static_cast<size_t>(owners[page]) * static_cast<size_t>(tp);
    for (size_t rank = first; rank < first + static_cast<size_t>(tp); ++rank) {
      const Place place = places[rank * num_keys + page];
      const double on_disk_s = share_on_disk(place) * ranks[rank].disk_page_s;
      slow.read_s = std::max(slow.read_s, place == kKept ? ranks[rank].kept_page_s : on_disk_s);
      slow.load_s = std::max(slow.load_s, on_disk_s);
      slow.kept = slow.kept || place == kKept;
    }
  }
  return pages;
}

struct Worth {
  int64_t num_pages = 0;  // of those found, that are worth loading
  Duration kept_patience = Duration::zero();
};

// Chooses the same pages on all ranks, since it uses only values that all ranks have gathered. The
// other ranks wait for this one until `deadline` at most; reading may take half of the time left.
Result<Worth> agree_on_worth(kvstore::CachedPages& store, const engine::RankGrid& grid,
                             const std::vector<int>& owners, const std::vector<Place>& places,
                             Deadline deadline, const PrefixCheck& check) {
  const bool all_in_memory =
      std::ranges::all_of(places, [](Place place) { return place <= kInMemory; });
  if (all_in_memory) return Worth{.num_pages = std::ssize(owners)};
  MR_ASSIGN_OR_RETURN(const auto ranks,
                      engine::gather_values(grid.world(), pace_of(store, check), deadline));
  const auto pages = slow_pages(owners, places, ranks, grid.shape().tp);
  const auto most_patience = deadline.left() / 2;
  const RankPace& first = ranks.front();
  if (!first.knows_rows) {
    return Worth{.num_pages = std::ssize(pages),
                 .kept_patience = patience_for_kept(pages, std::nullopt, most_patience)};
  }
  const int64_t num_pages = num_worth_loading(pages, {.num_tokens = check.num_tokens,
                                                      .rows = first.rows,
                                                      .num_owners = grid.shape().cp,
                                                      .loads_beside = first.loads_beside,
                                                      .least_gain_s = check.least_gain_s});
  const auto worth = std::span(pages).first(static_cast<size_t>(num_pages));
  return Worth{.num_pages = num_pages,
               .kept_patience = patience_for_kept(worth, first.rows, most_patience)};
}

// How many of `keys` come before the first damaged page. With n threads, each checks every n-th
// page, so that pages that lie together, on disk or in one tier, are shared out evenly. The store
// takes its lock for one page at a time and holds none while it reads.
int64_t num_intact(kvstore::CachedPages& store, std::span<const PageContentKey> keys,
                   const PrefixCheck& check, Duration kept_patience) {
  const int most = kept_patience > Duration::zero() ? std::min(check.num_threads, kMostDiskReaders)
                                                    : check.num_threads;
  const auto stride = static_cast<size_t>(
      std::clamp<int64_t>(std::ssize(keys) / kLeastPages, 1, std::max(1, most)));
  std::vector<size_t> first_damaged(stride, keys.size());
  const auto check_some = [&](size_t thread) {
    std::vector<PageContentKey> own;
    for (size_t i = thread; i < keys.size(); i += stride) own.push_back(keys[i]);
    const auto intact = store.check_cached(own, check.pages, kept_patience);
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

Result<CachedPrefix> agree_on_prefix(kvstore::CachedPages& store, const engine::RankGrid& grid,
                                     std::span<const PageContentKey> keys, Deadline deadline,
                                     const PrefixCheck& check) {
  MR_ASSIGN_OR_RETURN(const auto places,
                      gather_places(grid.world(), store.place_cached(keys), deadline));
  auto owners = find_owners(places, grid.shape(), keys.size(), check);
  const int64_t num_found = std::ssize(owners);
  MR_ASSIGN_OR_RETURN(const auto worth,
                      agree_on_worth(store, grid, owners, places, deadline, check));
  owners.resize(static_cast<size_t>(worth.num_pages));
  const int rank = grid.cp().rank();
  const auto found = CachedPrefix::of(owners, keys, rank);
  std::vector<PageContentKey> own_keys;
  for (const auto& cached : found.own) own_keys.push_back(cached.key);
  const int64_t damaged = num_intact(store, own_keys, check, worth.kept_patience);
  const int64_t own_end = damaged == std::ssize(found.own)
                              ? found.prefix.num_pages()
                              : found.own[static_cast<size_t>(damaged)].page;
  MR_ASSIGN_OR_RETURN(const auto ends, engine::gather_values(grid.world(), own_end, deadline));
  owners.resize(static_cast<size_t>(*std::ranges::min_element(ends)));
  auto cached = CachedPrefix::of(std::move(owners), keys, rank);
  cached.prefix.float8 = store.geometry().float8.get();
  cached.num_left = num_found - worth.num_pages;
  return cached;
}

}  // namespace millrace::worker
