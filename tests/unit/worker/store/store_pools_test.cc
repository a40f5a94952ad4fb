// SPDX-License-Identifier: Apache-2.0
#include "worker/store/store_pools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/capacity.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(StorePools, TheHostPoolIsAPartOfWhatTheRanksThatStoreDivide) {
  const MachineRoom room{.memory_bytes = 64 * kGiB, .num_ranks = 4};
  EXPECT_EQ(pool_sizes({}, room)->host_bytes, 8 * kGiB);
  MachineRoom cpus = room;
  cpus.device_is_host = true;
  EXPECT_EQ(pool_sizes({}, cpus)->host_bytes, 2 * kGiB);
}

TEST(StorePools, MoreHostMemoryThanIsFreeIsRefusedWithTheNumbers) {
  const MachineRoom room{.memory_bytes = 64 * kGiB, .num_ranks = 4};
  EXPECT_EQ(pool_sizes({.host_bytes = 16 * kGiB}, room)->host_bytes, 16 * kGiB);
  const auto refused = pool_sizes({.host_bytes = 16 * kGiB + 1}, room);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("--host-pool 16.0 GiB for each of 4 ranks"), HasSubstr("64.0 GiB")));
}

TEST(StorePools, ADevicePoolCountsWhereItIsHostMemory) {
  MachineRoom room{.memory_bytes = 8 * kGiB};
  const PoolOptions options{.device_bytes = 5 * kGiB, .host_bytes = 4 * kGiB};
  EXPECT_TRUE(pool_sizes(options, room).ok());
  room.device_is_host = true;
  EXPECT_THAT(pool_sizes(options, room).error().message, HasSubstr("--device-pool 5.00 GiB"));
  // Sums that exceed 64 bits are refused.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(pool_sizes({.device_bytes = kMost, .host_bytes = kMost}, room).ok());
}

TEST(StorePools, ADevicePoolThatNobodyAskedForLeavesTheHostPoolToPages) {
  kvstore::KvStoreConfig config{
      .host_bytes = kGiB,
      .geometry = {.num_layers = 2, .num_kv_heads = 4, .head_dim = 64, .dtype = DType::kBFloat16}};
  const int64_t page_bytes = config.geometry.page_bytes();
  const int64_t record_bytes = config.geometry.record_bytes();
  PoolOptions options{.device_bytes = 1000 * page_bytes, .device_is_automatic = true};
  EXPECT_EQ(device_pool_bytes(options, config), options.device_bytes);
  options.device_bytes = 100 * kGiB;
  const int64_t most = device_pool_bytes(options, config);
  EXPECT_LE(most / page_bytes * record_bytes, kGiB / 4);
  EXPECT_GT((most / page_bytes + 1) * record_bytes, kGiB / 4);
  // Records of the disk's pages come first.
  config.disk_bytes = kGiB / 2 / record_bytes * page_bytes;
  EXPECT_NEAR(static_cast<double>(device_pool_bytes(options, config)),
              static_cast<double>(most / 2), static_cast<double>(page_bytes));
  config.disk_bytes = 2 * kGiB / record_bytes * page_bytes;
  EXPECT_EQ(device_pool_bytes(options, config), 0);
  // Who asks for a size gets it, or learns that it does not fit.
  options.device_is_automatic = false;
  EXPECT_EQ(device_pool_bytes(options, config), 100 * kGiB);
}

TEST(StorePools, ADevicePoolBesideTheHostsHoldsAsMuchAsTheHostPoolAlone) {
  const kvstore::KvGeometry geometry{.num_layers = 2, .num_kv_heads = 4, .head_dim = 64};
  for (const int64_t host_pages : {1, 10, 1000}) {
    kvstore::KvStoreConfig config{
        .host_bytes = host_pages * (geometry.page_bytes() + geometry.record_bytes()),
        .geometry = geometry};
    const auto alone = (*kvstore::make_kv_store(config, Clock::steady()))->stats();
    config.device_bytes =
        device_pool_bytes({.device_bytes = kGiB, .device_is_automatic = true}, config);
    const auto beside = (*kvstore::make_kv_store(config, Clock::steady()))->stats();
    EXPECT_GE(beside.pages_available, alone.pages_available) << host_pages;
  }
}

TEST(StorePools, RanksOfOneDiskDivideIt) {
  MachineRoom room{.memory_bytes = 8 * kGiB, .disk_bytes = 100, .num_ranks_on_disk = 2};
  EXPECT_TRUE(pool_sizes({.disk_bytes = 50, .disk_directory = "/d"}, room).ok());
  const auto refused = pool_sizes({.disk_bytes = 51, .disk_directory = "/d"}, room);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("for each of 2 ranks: only 100 B is free in /d"));
}

TEST(StorePools, WhatIsKeptHasTheRoomThatDiskPoolsLeaveAndWhatItHadBefore) {
  const MachineRoom room{.disk_bytes = 1000, .num_ranks_on_disk = 2};
  PoolOptions options{.disk_bytes = 400, .disk_directory = "/d", .kept_bytes = 100};
  EXPECT_EQ(room_to_keep(options, room, 0), 100);
  options.kept_bytes = 101;
  EXPECT_EQ(room_to_keep(options, room, 0), 100);
  EXPECT_EQ(room_to_keep(options, room, 50), 101);
  options.disk_bytes = 600;
  EXPECT_EQ(room_to_keep(options, room, 0), 0);
}

TEST(StorePools, NamesOfKeptFilesAreOfOneGroupAndNoPath) {
  EXPECT_NE(kept_name("group-0"), kept_name("group-1"));
  EXPECT_EQ(kept_name("../../a/b").find_first_not_of("prefixes-0123456789abcdef"),
            std::string::npos);
}

TEST(StorePools, NeighboursAreThoseThatStoreOnTheSameMachineAndDisk) {
  // Two machines with three ranks each. The third rank of each stores nothing, and the first
  // machine's second rank has a different disk.
  const std::vector<StorePlace> places = {{0, true, 7}, {0, true, 8}, {0, false, 0},
                                          {3, true, 7}, {3, true, 7}, {3, false, 0}};
  std::vector<MachineRoom> rooms(places.size());
  test::run_ranks(6, [&](std::unique_ptr<comm::Communicator> world) {
    const auto rank = static_cast<size_t>(world->rank());
    rooms[rank] = *count_neighbours(*world, places[rank], Deadline::after(std::chrono::minutes(1)));
  });
  for (const size_t rank : {0, 1, 3, 4}) {
    EXPECT_EQ(rooms[rank].num_ranks, 2) << rank;
    EXPECT_EQ(rooms[rank].num_ranks_on_disk, rank < 3 ? 1 : 2) << rank;
  }
}

TEST(StorePools, ADirectoryThatCannotBeMadeIsTheSameErrorOnAllRanks) {
  const test::TempDirectory files;
  const std::string below_a_file = files.write("file", "") + "/rank-1";
  std::vector<std::string> messages(2);
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    const auto rank = static_cast<size_t>(world->rank());
    const auto place = store_place(0, true, rank == 1 ? below_a_file : files.path());
    const auto room = count_neighbours(*world, place, Deadline::after(std::chrono::minutes(1)));
    if (!room.ok()) messages[rank] = room.error().message;
  });
  for (const auto& message : messages) EXPECT_THAT(message, HasSubstr(below_a_file));
}

TEST(StorePools, TheLongestPromptThatIsPromisedFitsTheEmptyPools) {
  const auto config = test::tiny_model_config();
  const model::ShardShape shard{.num_kv_heads = 4};
  const engine::RankLayout layout{.config = config, .shard = shard};
  const kvstore::KvGeometry geometry{
      .num_layers = config.num_layers, .num_kv_heads = 4, .head_dim = config.head_dim};
  const int64_t rows = config.num_layers * int64_t{4};
  // Slots for exactly ten pages of each layer and head, in one tier and in two.
  for (const int64_t device_slots : {int64_t{0}, 3 * rows + 1}) {
    const auto store =
        *kvstore::make_kv_store({.device_bytes = device_slots * geometry.page_bytes(),
                                 .host_bytes = (10 * rows - device_slots) * geometry.page_bytes() +
                                               10 * rows * geometry.record_bytes(),
                                 .geometry = geometry},
                                Clock::steady());
    const int64_t tokens = engine::max_stored_tokens(layout, store->stats().pages_available);
    EXPECT_EQ(tokens, (device_slots == 0 ? 10 : 9) * 64);
    const engine::Partition partition(tokens, 1, 64);
    const auto begun = store->begin_request("r", tokens, partition.pages(0));
    EXPECT_TRUE(begun.ok()) << begun.error().to_string();
  }
}

}  // namespace
}  // namespace millrace::worker
