// SPDX-License-Identifier: Apache-2.0
#include "worker/store/device_tier.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "common/log.h"

namespace millrace::worker {

namespace {

// For the copies of a page or a batch: more than any working device needs.
constexpr auto kCopyTimeout = std::chrono::seconds(60);

}  // namespace

Result<std::unique_ptr<DeviceTier>> DeviceTier::create(kernels::DeviceMemory& device,
                                                       int64_t num_slots, int64_t slot_bytes,
                                                       bool shares) {
  std::unique_ptr<DeviceTier> tier(new DeviceTier(num_slots, slot_bytes));
  MR_RETURN_IF_ERROR(tier->allocate(device, shares && num_slots > 0));
  for (Lane& lane : tier->lanes_) {
    lane.lane = device.make_copy_lane();
    MR_ASSIGN_OR_RETURN(lane.staging, device.allocate_host(slot_bytes));
  }
  for (Lane& lane : tier->batch_lanes_) {
    lane.lane = device.make_copy_lane();
    MR_ASSIGN_OR_RETURN(lane.staging,
                        device.allocate_host(std::min(num_slots, kBatchSlots) * slot_bytes));
  }
  return tier;
}

Result<void> DeviceTier::allocate(kernels::DeviceMemory& device, bool shares) {
  if (shares) {
    auto shared = device.allocate_shared(num_slots_ * slot_bytes_);
    if (shared.ok()) {
      memory_ = std::move(shared->memory);
      shared_ = {.descriptor = shared->descriptor, .bytes = shared->mapped_bytes};
      return {};
    }
    if (shared.error().code != Errc::kUnsupported) return shared.error();
    log::warn(
        "decode processes of this host pull pages of the device pool by way of host memory: {}",
        shared.error().message);
  }
  MR_ASSIGN_OR_RETURN(memory_, device.allocate(num_slots_ * slot_bytes_));
  return {};
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

template <typename Copies>
Result<void> DeviceTier::finish(Lane& lane, const Copies& copies) {
  Result<void> ended;
  try {
    copies();
    ended = lane.lane->synchronize(Deadline::after(kCopyTimeout));
  } catch (const std::exception& e) {
    // The engine's thread ends the rank when a GPU fails; this may be the KV server's thread.
    ended = Error(Errc::kIo, e.what());
  }
  if (!ended.ok()) lane.given_up = true;
  return ended;
}

Result<void> DeviceTier::copy(Lane& lane, void* destination, const void* source,
                              int64_t bytes) const {
  return finish(lane, [&] {
    lane.lane->copy_rows(
        {.destination = destination, .source = source, .row_bytes = bytes, .num_rows = 1});
  });
}

Result<void> DeviceTier::write(int64_t slot, std::span<const std::byte> bytes) {
  Lane& lane = lane_of(slot);
  const std::lock_guard lock(lane.mutex);
  MR_RETURN_IF_ERROR(check_usable(lane, slot));
  std::memcpy(lane.staging.as<void>(), bytes.data(), bytes.size());
  return copy(lane, at(slot), lane.staging.as<void>(), std::ssize(bytes));
}

template <typename Write>
Result<void> DeviceTier::write_parts(std::span<const int64_t> slots, std::span<uint8_t> failed,
                                     int64_t most, const Write& write) {
  Result<void> all;
  for (size_t first = 0; first < slots.size(); first += static_cast<size_t>(most)) {
    const size_t count = std::min(static_cast<size_t>(most), slots.size() - first);
    auto written = write(slots.subspan(first, count), static_cast<int64_t>(first));
    if (written.ok()) continue;
    std::ranges::fill(failed.subspan(first, count), uint8_t{1});
    if (all.ok()) all = std::move(written);
  }
  return all;
}

Result<void> DeviceTier::write_many(std::span<const int64_t> slots,
                                    std::span<const std::byte> bytes, std::span<uint8_t> failed) {
  return write_parts(slots, failed, kBatchSlots, [&](auto part, int64_t first) {
    return write_batch(part, [&](Lane& batch) {
      auto* const staging = batch.staging.template as<std::byte>();
      std::memcpy(staging, bytes.data() + first * slot_bytes_,
                  part.size() * static_cast<size_t>(slot_bytes_));
      // One copy for each run of consecutive slots.
      for (size_t at = 0, end = 0; at < part.size(); at = end) {
        for (end = at + 1; end < part.size() && part[end] == part[end - 1] + 1;) ++end;
        batch.lane->copy_rows({.destination = this->at(part[at]),
                               .source = staging + static_cast<int64_t>(at) * slot_bytes_,
                               .row_bytes = static_cast<int64_t>(end - at) * slot_bytes_,
                               .num_rows = 1});
      }
    });
  });
}

Result<void> DeviceTier::write_on_device(std::span<const int64_t> slots,
                                         const kvstore::DeviceHalves& from,
                                         std::span<uint8_t> failed) {
  return write_parts(slots, failed, kernels::kMaxScatteredPages, [&](auto part, int64_t first) {
    const auto halves = from.after(first * slot_bytes_ / 2);
    return write_batch(part, [&](Lane& batch) {
      std::array<std::byte*, kernels::kMaxScatteredPages> pages;
      std::ranges::transform(part, pages.begin(), [&](int64_t slot) { return at(slot); });
      batch.lane->scatter_pages({.pages = std::span(pages).first(part.size()),
                                 .page_bytes = slot_bytes_,
                                 .k = halves.k,
                                 .v = halves.v});
    });
  });
}

template <typename Copies>
Result<void> DeviceTier::write_batch(std::span<const int64_t> slots, const Copies& copies) {
  for (const int64_t slot : slots) {
    Lane& lane = lane_of(slot);
    const std::lock_guard lock(lane.mutex);
    MR_RETURN_IF_ERROR(check_usable(lane, slot));
  }
  Lane& batch = batch_lanes_[next_batch_++ % kNumBatchLanes];
  Result<void> written;
  {
    const std::lock_guard lock(batch.mutex);
    MR_RETURN_IF_ERROR(check_usable(batch, slots.front()));
    written = finish(batch, [&] { copies(batch); });
  }
  if (written.ok()) return written;
  // A copy that has not ended may still write to any of the slots.
  for (const int64_t slot : slots) {
    Lane& lane = lane_of(slot);
    const std::lock_guard lock(lane.mutex);
    lane.given_up = true;
  }
  return written;
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
