// SPDX-License-Identifier: Apache-2.0
// The sizes of the pools of a rank's KV store: its share of its machine's memory and disk, which it
// divides with the other ranks there that store pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kvstore/kv_store.h"

namespace millrace::worker {

struct PoolOptions {
  int64_t device_bytes = 0;
  bool device_is_automatic = false;   // nobody asked for device_bytes: less will do
  std::optional<int64_t> host_bytes;  // none: a share of the free memory
  int64_t disk_bytes = 0;
  std::string disk_directory;  // this rank's own, unless said otherwise; empty: no disk
  bool shares_memory = false;  // with decode processes of the same host and user
  int64_t kept_bytes = 0;  // in disk_directory, besides disk_bytes: prefixes that outlive the group
  std::string group_name;  // the group that these prefixes belong to
};

// Where a rank's pages are.
struct StorePlace {
  int32_t machine = 0;  // the number of the first rank there
  bool stores = true;   // false where another rank stores the same kv heads
  uint64_t disk = 0;    // the number by which the machine knows the file system
};

// What a machine has for those of its ranks that store pages.
struct MachineRoom {
  int64_t memory_bytes = 0;
  int num_ranks = 1;
  int64_t disk_bytes = 0;
  int num_ranks_on_disk = 1;
  bool device_is_host = false;  // the device pool is host memory too
};

// Creates the directory, if one is named.
Result<StorePlace> store_place(int machine, bool stores, const std::string& disk_directory);

Result<int64_t> free_disk_bytes(const std::string& directory);

// Collective. Counts the ranks that this rank shares memory and disk with, itself included, and
// returns only these counts. On a rank that stores nothing the result must not be used. An error of
// one rank is the same on all.
Result<MachineRoom> count_neighbours(comm::Communicator& world, const Result<StorePlace>& own,
                                     Deadline deadline);

// The name of a group's files in a rank's directory, without their endings. The group's own name
// may have any characters.
std::string kept_name(const std::string& group_name);
// The path of the journal of cached pages (worker/events/journal_file.h), beside rank 0's files.
// `options` are those of all ranks.
std::string journal_path(const PoolOptions& options);

// How many bytes of cached prefixes a rank may keep, where `kept_already` bytes are kept. Less than
// options.kept_bytes, with a warning, where the disk has no room for them beside the disk pools.
int64_t room_to_keep(const PoolOptions& options, const MachineRoom& room, int64_t kept_already);

// Budgets of a rank's store. kInvalidArgument, with the numbers, where the ranks together would
// take more than is free. On a CPU the pools are not touched before pages come; a process that then
// takes more memory than there is would be killed in the middle of a request.
Result<kvstore::KvStoreConfig> pool_sizes(const PoolOptions& options, const MachineRoom& room);

// The device pool for a store that is otherwise as `config` says, whose geometry is set: where
// nobody asked for its size, the records of its pages take at most a quarter of the part of the
// host pool that is not for records of the disk's pages.
int64_t device_pool_bytes(const PoolOptions& options, const kvstore::KvStoreConfig& config);

}  // namespace millrace::worker
