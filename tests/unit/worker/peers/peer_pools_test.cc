// SPDX-License-Identifier: Apache-2.0
// The host pools of ranks, as the other ranks of their row see them.
#include "worker/peers/peer_pools.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kvstore/kv_store.h"
#include "tests/support/far_device.h"
#include "tests/unit/engine/ranks/rank_threads.h"
#include "worker/peers/page_places.h"
#include "worker/peers/peer_pins.h"

namespace millrace::worker {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int64_t kPages = 6;  // of a store, one of which a prompt has

const kvstore::KvGeometry kGeometry{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};

std::unique_ptr<kvstore::KvStore> store(bool shares_memory) {
  auto made = kvstore::make_kv_store(
      {.host_bytes = kPages * (kGeometry.page_bytes() + kGeometry.record_bytes()),
       .shares_memory = shares_memory,
       .geometry = kGeometry},
      Clock::steady());
  MR_CHECK(made.ok(), "{}", made.error().to_string());
  return *std::move(made);
}

PageContentKey key_of(int rank) {
  PageContentKey key{};
  key[0] = static_cast<std::byte>(rank);
  return key;
}

// Stores and remembers a page of bytes `rank`. "next" begins with it, as page `rank` of its prompt.
void fill(kvstore::KvStore& store, int rank) {
  const std::vector<int64_t> pages = {rank};
  const std::vector<std::byte> kv(static_cast<size_t>(kGeometry.page_bytes()),
                                  static_cast<std::byte>(rank));
  const std::vector<float> digest(8);
  const std::vector<float> scores = {1};
  const std::vector<kvstore::CachedPage> named = {{.page = rank, .key = key_of(rank)}};
  const bool filled = store.begin_request("first", 64 * (rank + 1), pages).ok() &&
                      store
                          .write_page("first", {.layer = 0, .kv_head = 0, .page = rank}, kv,
                                      {.min = digest, .max = digest, .radius = digest})
                          .ok() &&
                      store.set_scores("first", 0, 0, scores).ok() &&
                      store.seal("first", "lease", std::chrono::hours(1)).ok() &&
                      store.remember("first", named).ok() &&
                      store.begin_request("next", 64 * 8, {}, named).ok();
  MR_CHECK(filled, "a store is not filled");
}

TEST(PeerPools, APrefixIsReadWhereEachRankHasIt) {
  std::vector<std::string> wrong(3);
  test::run_ranks(3, [&](std::unique_ptr<comm::Communicator> row) {
    const int rank = row->rank();
    const auto device = kernels::make_cpu_device({.num_threads = 1});
    const auto own = store(/*shares_memory=*/true);
    fill(*own, rank);
    const auto peers = PeerPools::connect(*row, *own, *device, Deadline::after(kTimeout));
    if (!peers.ok()) {
      wrong[static_cast<size_t>(rank)] = peers.error().to_string();
      return;
    }
    const auto held = *own->hold_prefix("next");
    std::vector<PagePlace> told;
    add_places(*held, *own, told);
    std::vector<PagePlace> all(3);
    const std::vector<int64_t> counts(3, int64_t{sizeof(PagePlace)});
    MR_CHECK(row->all_gather(std::as_bytes(std::span(told)), std::as_writable_bytes(std::span(all)),
                             counts, Deadline::after(kTimeout))
                 .ok(),
             "places");
    const engine::PromptPrefix prefix{.owners = {0, 1, 2}};
    PeerPins pins(
        *own, "next", prefix, rank, peers->get(),
        {std::span(all).first(1), std::span(all).subspan(1, 1), std::span(all).subspan(2, 1)});
    const std::vector<int64_t> pages = {0, 1, 2};
    const auto pinned = pins.pin(0, 0, pages);
    auto& said = wrong[static_cast<size_t>(rank)];
    if (!pins.reach_all() || !pinned.ok()) said = "not all pages can be had";
    for (int owner = 0; said.empty() && owner < 3; ++owner) {
      const auto bytes = (*pinned)->pages()[static_cast<size_t>(owner)].bytes;
      const bool same = std::ssize(bytes) == kGeometry.page_bytes() &&
                        std::ranges::all_of(bytes, [owner](std::byte byte) {
                          return byte == static_cast<std::byte>(owner);
                        });
      if (!same) said = fmt::format("page {} is another", owner);
    }
    // At no place, and beyond the end.
    const int other = (rank + 1) % 3;
    if (!(*peers)->bytes(other, {}, 1).empty()) said = "there is no such pool";
    if (!(*peers)->bytes(other, {.pool = 1, .offset = 1u << 30}, 1).empty()) said = "too far";
    if (!(*peers)->bytes(other, {.pool = 2, .offset = 0}, 1).empty()) said = "too many pools";
    if (!(*peers)->bytes(rank, {.pool = 1, .offset = 0}, 1).empty()) said = "its own";
    (void)row->barrier(Deadline::after(kTimeout));  // the others have read
  });
  EXPECT_EQ(wrong, std::vector<std::string>(3));
}

TEST(PeerPools, ARankWithAPrivatePoolIsSeenByNone) {
  std::vector<Errc> codes(2);
  std::vector<std::string> why(2);
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> row) {
    const auto rank = static_cast<size_t>(row->rank());
    const auto device = kernels::make_cpu_device({.num_threads = 1});
    const auto own = store(/*shares_memory=*/row->rank() == 0);
    const auto peers = PeerPools::connect(*row, *own, *device, Deadline::after(kTimeout));
    if (peers.ok()) return;
    codes[rank] = peers.error().code;
    why[rank] = peers.error().message;
  });
  EXPECT_EQ(codes, std::vector<Errc>(2, Errc::kUnsupported));
  EXPECT_EQ(why[0], "context-parallel rank 1: its host pool is private");
  EXPECT_EQ(why[1], "the host pool is private");
}

// On rank 0 once nothing is running; on rank 1 while something runs, since that reads them.
TEST(PeerPools, ADeviceIsGivenWhatItsOwnerHasMadeResident) {
  std::vector<int> locked(2);
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> row) {
    test::FarDevice device(kernels::make_cpu_device({.num_threads = 1}));
    const auto own = store(/*shares_memory=*/true);
    fill(*own, row->rank());  // one page of the pool is resident at least
    own->prefault(/*num_threads=*/1);
    const auto peers = PeerPools::connect(*row, *own, device, Deadline::after(kTimeout));
    MR_CHECK(peers.ok(), "{}", peers.error().to_string());
    MR_CHECK((*peers)->locked_bytes() == 0, "a prompt might run");
    row->rank() == 0 ? (*peers)->set_busy(false) : (*peers)->set_used();
    const auto deadline = Deadline::after(kTimeout);
    while ((*peers)->locked_bytes() == 0 && !deadline.passed()) std::this_thread::yield();
    const auto lane = device.make_copy_lane();
    locked[static_cast<size_t>(row->rank())] =
        lane->reaches(
            (*peers)->bytes(1 - row->rank(), {.pool = 1, .offset = 0}, kGeometry.page_bytes()))
            ? 1
            : 0;
    (void)row->barrier(Deadline::after(kTimeout));
  });
  EXPECT_EQ(locked, std::vector<int>(2, 1));
}

}  // namespace
}  // namespace millrace::worker
