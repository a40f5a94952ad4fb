// SPDX-License-Identifier: Apache-2.0
#include "kvstore/kv_store.h"

#include <limits>

#include "common/log.h"
#include "common/units.h"
#include "kvstore/tiered_kv_store.h"
#include "kvstore/tiers/disk_tier.h"
#include "kvstore/tiers/memory_tier.h"

namespace millrace::kvstore {
namespace {

// Far above any model; keeps every product of these within 64 bits.
constexpr int32_t kMaxLayers = 4096;
constexpr int32_t kMaxKvHeads = 4096;
constexpr int32_t kMaxHeadDim = 4096;
constexpr int32_t kMaxPageTokens = 4096;

bool within(int32_t value, int32_t max) {
  return value > 0 && value <= max;
}

Result<void> check_geometry(const KvGeometry& geometry) {
  if (within(geometry.num_layers, kMaxLayers) && within(geometry.num_kv_heads, kMaxKvHeads) &&
      within(geometry.head_dim, kMaxHeadDim) && within(geometry.page_tokens, kMaxPageTokens) &&
      geometry.first_kv_head >= 0 && geometry.first_kv_head <= kMaxKvHeads) {
    return {};
  }
  return error(Errc::kInvalidArgument,
               "KV geometry of {} layers, {} kv heads from {}, head dim {}, {} tokens a page",
               geometry.num_layers, geometry.num_kv_heads, geometry.first_kv_head,
               geometry.head_dim, geometry.page_tokens);
}

Result<int64_t> slots_of(int64_t budget_bytes, int64_t page_bytes) {
  const int64_t slots = budget_bytes / page_bytes;
  if (budget_bytes >= 0 && slots <= std::numeric_limits<int32_t>::max()) return slots;
  return error(Errc::kInvalidArgument, "KV budget of {} bytes for pages of {}", budget_bytes,
               format_bytes(page_bytes));
}

// The records of all pages are in host memory. They come first; the rest holds pages.
Result<int64_t> host_slots_of(const KvStoreConfig& config, int64_t other_slots) {
  const int64_t record_bytes = config.geometry.record_bytes();
  const int64_t others_bytes = other_slots * record_bytes;
  if (config.host_bytes < others_bytes) {
    return error(Errc::kInvalidArgument,
                 "the {} device pool and the {} disk pool hold {} pages, whose records need {} of "
                 "the host pool, which has {}",
                 format_bytes(config.device_bytes), format_bytes(config.disk_bytes), other_slots,
                 format_bytes(others_bytes), format_bytes(config.host_bytes));
  }
  return slots_of(config.host_bytes - others_bytes, config.geometry.page_bytes() + record_bytes);
}

Result<TierStorage> make_memory_tier(int64_t slots, int64_t page_bytes, bool shared) {
  MR_ASSIGN_OR_RETURN(auto memory, shared ? MemoryTier::allocate_shared(slots, page_bytes)
                                          : MemoryTier::allocate(slots, page_bytes));
  return TierStorage{.memory = std::move(memory), .max_slots = slots};
}

Result<TierStorage> make_disk_tier(const KvStoreConfig& config, int64_t page_bytes) {
  if (config.disk_directory.empty() || config.disk_bytes == 0) return TierStorage{};
  MR_ASSIGN_OR_RETURN(const int64_t slots, slots_of(config.disk_bytes, page_bytes));
  MR_ASSIGN_OR_RETURN(auto disk, DiskTier::open(config.disk_directory, page_bytes));
  return TierStorage{.memory = std::move(disk), .max_slots = slots};
}

std::string identity_of(const KvStoreConfig& config) {
  const auto& geometry = config.geometry;
  return fmt::format("{}, {} layers, kv heads {} to {}, head dim {}, {}, {} tokens a page",
                     config.kept_identity, geometry.num_layers, geometry.first_kv_head,
                     geometry.first_kv_head + geometry.num_kv_heads - 1, geometry.head_dim,
                     dtype_name(geometry.dtype), geometry.page_tokens);
}

// Problems with files of an earlier process cost their pages, but never prevent the start.
std::unique_ptr<PrefixArchive> open_archive(const KvStoreConfig& config) {
  if (config.kept_bytes == 0) return nullptr;
  const auto& geometry = config.geometry;
  const ArchiveLayout layout{.num_rows = int64_t{geometry.num_layers} * geometry.num_kv_heads,
                             .page_bytes = geometry.page_bytes(),
                             .digest_bytes = geometry.digest_bytes()};
  auto archive = PrefixArchive::open({.directory = config.kept_directory,
                                      .name = config.kept_name,
                                      .identity = identity_of(config),
                                      .max_bytes = config.kept_bytes},
                                     layout);
  if (!archive.ok()) {
    log::warn("no cached prefixes are found, and none are kept for the next start: {}",
              archive.error().message);
    return nullptr;
  }
  const auto stats = (*archive)->stats();
  log::info("cached prefixes of {} tokens found in {}, {}",
            stats.columns * config.geometry.page_tokens, config.kept_directory,
            format_bytes(stats.columns * stats.slot_bytes));
  return *std::move(archive);
}

}  // namespace

Result<std::unique_ptr<KvStore>> make_kv_store(const KvStoreConfig& config, const Clock& clock,
                                               std::unique_ptr<SlotMemory> device_memory) {
  MR_RETURN_IF_ERROR(check_geometry(config.geometry));
  const int64_t page_bytes = config.geometry.page_bytes();
  TierStorages tiers;
  auto& [device, host, disk] = tiers;
  MR_ASSIGN_OR_RETURN(device.max_slots, slots_of(config.device_bytes, page_bytes));
  MR_ASSIGN_OR_RETURN(disk, make_disk_tier(config, page_bytes));
  MR_ASSIGN_OR_RETURN(const int64_t host_slots,
                      host_slots_of(config, device.max_slots + disk.max_slots));
  MR_ASSIGN_OR_RETURN(host, make_memory_tier(host_slots, page_bytes, config.shares_memory));
  if (device_memory == nullptr) {
    MR_ASSIGN_OR_RETURN(device,
                        make_memory_tier(device.max_slots, page_bytes, config.shares_memory));
  } else {
    device.memory = std::move(device_memory);
  }
  return std::unique_ptr<KvStore>(std::make_unique<TieredKvStore>(
      config.geometry, std::move(tiers), clock, config.promotes, config.read_bytes,
      config.read_ahead_bytes, open_archive(config)));
}

}  // namespace millrace::kvstore
