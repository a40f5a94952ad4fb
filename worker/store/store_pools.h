// How large the pools of a rank's KV store are: its part of what its machine has, beside the other
// ranks there that store pages.
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
  std::optional<int64_t> host_bytes;  // none: a part of the free memory
  int64_t disk_bytes = 0;
  std::string disk_directory;  // of this rank alone, where it is not said otherwise; empty: no disk
  bool shares_memory = false;  // with decode processes of its host and user
  int64_t kept_bytes = 0;  // of disk_directory, beside disk_bytes: prefixes that outlive the group
  std::string group_name;  // whose prefixes these are
};

// Where a rank's pages are.
struct StorePlace {
  int32_t machine = 0;  // the number of the first rank there
  bool stores = true;   // not where another rank has the same kv heads
  uint64_t disk = 0;    // as the machine tells its file systems apart
};

// What a machine has for the ranks there that store.
struct MachineRoom {
  int64_t memory_bytes = 0;
  int num_ranks = 1;
  int64_t disk_bytes = 0;
  int num_ranks_on_disk = 1;
  bool device_is_host = false;  // the device pool is host memory too
};

// Makes the directory, where there is one.
Result<StorePlace> store_place(int machine, bool stores, const std::string& disk_directory);

Result<int64_t> free_disk_bytes(const std::string& directory);

// Collective. The ranks that a rank shares memory and disk with, itself among them, counted into
// the room: of a rank that stores nothing, not to be used. An error of one is the same on all.
Result<MachineRoom> count_neighbours(comm::Communicator& world, const Result<StorePlace>& own,
                                     Deadline deadline);

// Of a group's files in a rank's directory, without their endings: names of groups may have any characters.
std::string kept_name(const std::string& group_name);
// Beside those of rank 0, of the prefix ledger (worker/control/ledger_file.h). `options` are those of all ranks.
std::string ledger_path(const PoolOptions& options);
// And of the journal of events (worker/events/journal_file.h).
std::string journal_path(const PoolOptions& options);

// What a rank may keep of cached prefixes, where `kept_already` bytes are: with a warning less than options.kept_bytes
// where the disk has no room for that beside the disk pools.
int64_t room_to_keep(const PoolOptions& options, const MachineRoom& room, int64_t kept_already);

// Budgets of a rank's store. kInvalidArgument, with the numbers, where the ranks together would
// take more than is free: on a CPU pools are not touched before pages come, and a process that then takes
// more than there is is ended in the middle of a request.
Result<kvstore::KvStoreConfig> pool_sizes(const PoolOptions& options, const MachineRoom& room);

}  // namespace millrace::worker
