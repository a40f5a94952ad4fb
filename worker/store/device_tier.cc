#include "worker/store/device_tier.h"

#include <cstring>
#include <exception>

namespace millrace::worker {

namespace {

// For one page: more than any working device needs.
constexpr auto kCopyTimeout = std::chrono::seconds(60);

}  // namespace

Result<std::unique_ptr<DeviceTier>> DeviceTier::create(kernels::Device& device, int64_t num_slots,
                                                       int64_t slot_bytes) {
  std::unique_ptr<DeviceTier> tier(new DeviceTier(num_slots, slot_bytes));
  MR_ASSIGN_OR_RETURN(tier->memory_, device.allocate(num_slots * slot_bytes));
  for (Lane& lane : tier->lanes_) {
    lane.lane = device.make_copy_lane();
    MR_ASSIGN_OR_RETURN(lane.staging, device.allocate_host(slot_bytes));
  }
  return tier;
}

Result<void> DeviceTier::resize(int64_t num_slots) {
  if (num_slots <= num_slots_) return {};
  return error(Errc::kExhausted, "{} KV slots requested, {} in device memory", num_slots,
               num_slots_);
}

std::byte* DeviceTier::at(int64_t slot) const {
  MR_CHECK(slot >= 0 && slot < num_slots_, "slot {} of {}", slot, num_slots_);
  return memory_.as<std::byte>() + slot * slot_bytes_;
}

Result<void> DeviceTier::check_usable(const Lane& lane, int64_t slot) const {
  if (!lane.given_up) return {};
  return error(Errc::kIo, "KV slot {} in device memory: an earlier copy in its lane did not finish",
               slot);
}

Result<void> DeviceTier::copy(Lane& lane, void* destination, const void* source,
                              int64_t bytes) const {
  lane.given_up = true;  // unless it ends
  try {
    lane.lane->copy_rows(
        {.destination = destination, .source = source, .row_bytes = bytes, .num_rows = 1});
    MR_RETURN_IF_ERROR(lane.lane->synchronize(Deadline::after(kCopyTimeout)));
  } catch (const std::exception& e) {
    // A GPU that failed ends the rank on the engine's thread; this may be the KV server's.
    return Error(Errc::kIo, e.what());
  }
  lane.given_up = false;
  return {};
}

Result<void> DeviceTier::write(int64_t slot, std::span<const std::byte> bytes) {
  Lane& lane = lane_of(slot);
  const std::lock_guard lock(lane.mutex);
  MR_RETURN_IF_ERROR(check_usable(lane, slot));
  std::memcpy(lane.staging.as<void>(), bytes.data(), bytes.size());
  return copy(lane, at(slot), lane.staging.as<void>(), std::ssize(bytes));
}

Result<void> DeviceTier::read(int64_t slot, std::span<std::byte> bytes) const {
  Lane& lane = lane_of(slot);
  const std::lock_guard lock(lane.mutex);
  MR_RETURN_IF_ERROR(check_usable(lane, slot));
  MR_RETURN_IF_ERROR(copy(lane, lane.staging.as<void>(), at(slot), std::ssize(bytes)));
  std::memcpy(bytes.data(), lane.staging.as<void>(), bytes.size());
  return {};
}

}  // namespace millrace::worker
