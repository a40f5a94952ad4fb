// SPDX-License-Identifier: Apache-2.0
#include "worker/store/rank_store.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/checksum.h"
#include "common/content/page_keys.h"
#include "common/log.h"
#include "common/system/available_memory.h"
#include "common/units.h"
#include "engine/ranks/agreement.h"
#include "worker/store/device_tier.h"

namespace millrace::worker {

namespace {

// The system clears a page of memory when it is first written, and a GPU waits for that. On an H200
// the first 131,072 tokens in fresh memory took 6.1 s, the next 3.5 s; with four threads that make
// the memory resident ahead of them, the first took 3.6 s (docs/notebook/prefix-on-gpus.md).
constexpr int kMaxPrefaultThreads = 4;

bool stores(const engine::RankRuntime& runtime) {
  return runtime.weights().shard.kv_replica == 0;
}

PoolOptions own_pools(PoolOptions options, engine::RankRuntime& runtime) {
  options.device_bytes = runtime.device_pool_bytes();
  options.device_is_automatic = runtime.device_pool_is_automatic();
  if (!options.disk_directory.empty()) {
    options.disk_directory += fmt::format("/rank-{}", runtime.grid().world().rank());
  }
  return options;
}

// Identifies the scales of pages in 8-bit floats, by which their codes are decoded.
std::string page_scales(const engine::RankRuntime& runtime) {
  const auto& scales = runtime.kv_scales();
  if (scales == nullptr) return "none";
  return fmt::format("{:016x}", checksum(std::as_bytes(std::span(scales->all()))));
}

// All that the bits of K and V may depend on, besides tokens, plan and salt, which are in the
// pages' keys.
std::string identity_of(const PoolOptions& options, engine::RankRuntime& runtime) {
  const auto& weights = runtime.weights();
  const auto shape = runtime.grid().shape();
  return fmt::format(
      "group '{}', rank {} of tp {} x cp {}, model {}, {}, scales of pages {}, on {}, page keys "
      "{}, millrace {}",
      options.group_name, runtime.grid().world().rank(), shape.tp, shape.cp, weights.fingerprint,
      model::arithmetic_name({weights.compute_dtype, weights.quantization}), page_scales(runtime),
      runtime.device().info().name, kPageKeyVersion, MILLRACE_VERSION);
}

// Errors of the directory are reported when the files are opened.
void set_kept(kvstore::KvStoreConfig& config, const PoolOptions& options,
              engine::RankRuntime& runtime, MachineRoom room) {
  config.kept_directory = options.disk_directory;
  config.kept_name = kept_name(options.group_name);
  config.kept_identity = identity_of(options, runtime);
  config.kept_bytes = options.kept_bytes;
  std::error_code status;
  const std::filesystem::path slots =
      fmt::format("{}/{}.slots", config.kept_directory, config.kept_name);
  std::filesystem::create_directories(config.kept_directory, status);
  const auto free_bytes = free_disk_bytes(config.kept_directory);
  if (!free_bytes.ok()) return;
  const auto kept_already = std::filesystem::file_size(slots, status);
  room.disk_bytes = *free_bytes;
  // Without a disk pool, ranks have not told each other which disks they use.
  if (options.disk_bytes == 0) room.num_ranks_on_disk = room.num_ranks;
  config.kept_bytes = room_to_keep(options, room, status ? 0 : static_cast<int64_t>(kept_already));
}

Result<kvstore::KvStoreConfig> store_config(const PoolOptions& options,
                                            engine::RankRuntime& runtime, MachineRoom room) {
  const auto& weights = runtime.weights();
  kvstore::KvStoreConfig config;
  if (stores(runtime)) {
    room.device_is_host = runtime.device().info().host_memory;
    room.memory_bytes = available_memory_bytes();
    if (options.disk_bytes > 0) {
      MR_ASSIGN_OR_RETURN(room.disk_bytes, free_disk_bytes(options.disk_directory));
    }
    MR_ASSIGN_OR_RETURN(config, pool_sizes(options, room));
  }
  config.geometry = {.num_layers = weights.config.num_layers,
                     .num_kv_heads = weights.shard.num_kv_heads,
                     .first_kv_head = weights.shard.first_kv_head,
                     .head_dim = weights.config.head_dim,
                     .dtype = weights.compute_dtype,
                     .float8 = runtime.kv_scales()};
  if (stores(runtime) && !runtime.device().info().host_memory) {
    config.device_bytes = device_pool_bytes(options, config);
  }
  if (stores(runtime) && options.kept_bytes > 0) set_kept(config, options, runtime, room);
  return config;
}

// A pool that nobody asked for is left out where its memory is not to be had.
Result<std::unique_ptr<DeviceTier>> make_device_tier(const PoolOptions& options,
                                                     kernels::DeviceMemory& device,
                                                     kvstore::KvStoreConfig& config) {
  const int64_t page_bytes = config.geometry.page_bytes();
  auto tier = DeviceTier::create(device, config.device_bytes / page_bytes, page_bytes,
                                 config.shares_memory);
  const bool does_without =
      !tier.ok() && tier.error().code == Errc::kExhausted && options.device_is_automatic;
  if (!does_without) return tier;
  log::warn("no device pool: {}", tier.error().message);
  config.device_bytes = 0;
  return DeviceTier::create(device, 0, page_bytes, config.shares_memory);
}

// Where the device has memory of its own, the device tier is in it.
Result<std::unique_ptr<kvstore::KvStore>> make_store(const PoolOptions& options,
                                                     engine::RankRuntime& runtime,
                                                     const MachineRoom& room, const Clock& clock) {
  MR_ASSIGN_OR_RETURN(auto config, store_config(options, runtime, room));
  std::unique_ptr<kvstore::SlotMemory> device_memory;
  if (!runtime.device().info().host_memory) {
    MR_ASSIGN_OR_RETURN(device_memory, make_device_tier(options, runtime.device(), config));
  }
  return kvstore::make_kv_store(config, clock, std::move(device_memory));
}

// A group whose pools hold no prompt would refuse every request.
Result<void> limit_to_store(engine::RankRuntime& runtime, const kvstore::KvStore& store,
                            Deadline deadline) {
  const auto stats = store.stats();
  MR_RETURN_IF_ERROR(runtime.limit_to_store(stats.pages_available, deadline));
  if (runtime.limits().max_prompt_tokens > 0) return {};
  return error(Errc::kInvalidArgument,
               "the pools hold {} pages of {}, but the shortest prompt needs {} on a "
               "rank, one for each layer and kv head; see --device-pool, --host-pool, --disk-pool",
               stats.pages_available, format_bytes(stats.tiers[Tier::kDevice].slot_bytes),
               runtime.weights().config.num_layers * runtime.weights().shard.num_kv_heads);
}

}  // namespace

Result<std::unique_ptr<kvstore::KvStore>> make_rank_store(const PoolOptions& options,
                                                          engine::RankRuntime& runtime,
                                                          const Clock& clock,
                                                          std::shared_ptr<PoolLocker> locker,
                                                          Deadline deadline) {
  auto& world = runtime.grid().world();
  const auto pools = own_pools(options, runtime);
  const auto place = store_place(runtime.cores().first_rank, stores(runtime),
                                 pools.disk_bytes > 0 ? pools.disk_directory : "");
  MR_ASSIGN_OR_RETURN(const auto room, count_neighbours(world, place, deadline));
  auto store = make_store(pools, runtime, room, clock);
  MR_RETURN_IF_ERROR(engine::all_agree(world, store.status(), deadline));
  MR_RETURN_IF_ERROR(limit_to_store(runtime, **store, deadline));
  // Only now: all ranks have seen how much memory is free.
  if (locker != nullptr) {
    (*store)->prefault(std::min(runtime.cores().num_threads, kMaxPrefaultThreads),
                       [locker = std::move(locker)](auto piece) { locker->add(piece); });
  }
  return store;
}

}  // namespace millrace::worker
