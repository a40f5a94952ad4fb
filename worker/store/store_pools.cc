// SPDX-License-Identifier: Apache-2.0
#include "worker/store/store_pools.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>

#include "common/content/sha256.h"
#include "common/log.h"
#include "common/units.h"
#include "engine/ranks/agreement.h"

namespace millrace::worker {

namespace {

Result<void> check_memory(const kvstore::KvStoreConfig& config, const MachineRoom& room) {
  const int64_t share = room.memory_bytes / room.num_ranks;
  const int64_t device_bytes = room.device_is_host ? config.device_bytes : 0;
  if (config.host_bytes <= share && device_bytes <= share - config.host_bytes) return {};
  return error(Errc::kInvalidArgument,
               "--host-pool {}{} for each of {} ranks: only {} of this machine's memory is free",
               format_bytes(config.host_bytes),
               room.device_is_host
                   ? fmt::format(" and --device-pool {}", format_bytes(config.device_bytes))
                   : "",
               room.num_ranks, format_bytes(room.memory_bytes));
}

Result<void> check_disk(const PoolOptions& options, const MachineRoom& room) {
  if (options.disk_bytes <= room.disk_bytes / room.num_ranks_on_disk) return {};
  return error(Errc::kInvalidArgument, "--disk-pool {} for each of {} ranks: only {} is free in {}",
               format_bytes(options.disk_bytes), room.num_ranks_on_disk,
               format_bytes(room.disk_bytes), options.disk_directory);
}

}  // namespace

Result<StorePlace> store_place(int machine, bool stores, const std::string& disk_directory) {
  StorePlace place{.machine = machine, .stores = stores};
  if (!stores || disk_directory.empty()) return place;
  std::error_code status;
  std::filesystem::create_directories(disk_directory, status);
  if (status) return error(Errc::kIo, "{}: {}", disk_directory, status.message());
  struct stat file {};
  if (stat(disk_directory.c_str(), &file) != 0) {
    return error(Errc::kIo, "{}: {}", disk_directory, std::generic_category().message(errno));
  }
  place.disk = file.st_dev;
  return place;
}

Result<int64_t> free_disk_bytes(const std::string& directory) {
  std::error_code status;
  const auto free_bytes = std::filesystem::space(directory, status).available;
  if (status) return error(Errc::kIo, "{}: {}", directory, status.message());
  return static_cast<int64_t>(free_bytes);
}

Result<MachineRoom> count_neighbours(comm::Communicator& world, const Result<StorePlace>& own,
                                     Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const auto places, engine::all_agree_on_values(world, own, deadline));
  MachineRoom room{.num_ranks = 0, .num_ranks_on_disk = 0};
  for (const StorePlace& place : places) {
    if (!place.stores || place.machine != own->machine) continue;
    ++room.num_ranks;
    if (place.disk == own->disk) ++room.num_ranks_on_disk;
  }
  return room;
}

std::string kept_name(const std::string& group_name) {
  return "prefixes-" + sha256_hex(std::as_bytes(std::span(group_name))).substr(0, 16);
}

std::string journal_path(const PoolOptions& options) {
  return fmt::format("{}/rank-0/{}.pages", options.disk_directory, kept_name(options.group_name));
}

int64_t room_to_keep(const PoolOptions& options, const MachineRoom& room, int64_t kept_already) {
  const int64_t share = room.disk_bytes / room.num_ranks_on_disk;
  const int64_t most = kept_already + std::max<int64_t>(0, share - options.disk_bytes);
  if (options.kept_bytes <= most) return options.kept_bytes;
  log::warn(
      "--prefix-disk {} for each of {} ranks: only {} is free in {} beside the disk pools, and {} "
      "are used",
      format_bytes(options.kept_bytes), room.num_ranks_on_disk, format_bytes(room.disk_bytes),
      options.disk_directory, format_bytes(most));
  return most;
}

Result<kvstore::KvStoreConfig> pool_sizes(const PoolOptions& options, const MachineRoom& room) {
  const int64_t share = room.memory_bytes / room.num_ranks;
  kvstore::KvStoreConfig config{
      .device_bytes = options.device_bytes,
      .host_bytes = options.host_bytes.value_or(share / (room.device_is_host ? 8 : 2)),
      .disk_bytes = options.disk_bytes,
      .disk_directory = options.disk_directory,
      .shares_memory = options.shares_memory,
      .promotes = room.device_is_host};
  MR_RETURN_IF_ERROR(check_memory(config, room));
  MR_RETURN_IF_ERROR(check_disk(options, room));
  return config;
}

int64_t device_pool_bytes(const PoolOptions& options, const kvstore::KvStoreConfig& config) {
  if (!options.device_is_automatic) return options.device_bytes;
  const int64_t page_bytes = config.geometry.page_bytes();
  const int64_t record_bytes = config.geometry.record_bytes();
  const int64_t disk_records = config.disk_bytes / page_bytes * record_bytes;
  const int64_t most_records = std::max<int64_t>(0, config.host_bytes - disk_records) / 4;
  return std::min(options.device_bytes, most_records / record_bytes * page_bytes);
}

}  // namespace millrace::worker
