// SPDX-License-Identifier: Apache-2.0
#include "kvstore/archive/archive_record.h"

#include <cstring>

#include "common/checksum.h"

namespace millrace::kvstore {

namespace {

constexpr size_t kPageAt = 32;
constexpr size_t kUsedAt = 40;
constexpr size_t kTableAt = 48;
constexpr size_t kChecksumAt = 56;

template <typename T>
void put(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <typename T>
T get(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Checksum of the record, with the slot's number in the checksum's place.
uint64_t checksum_of(std::span<const std::byte> record, int64_t slot) {
  std::array<std::byte, kChecksumAt + sizeof slot> summed;
  std::memcpy(summed.data(), record.data(), kChecksumAt);
  put(summed, kChecksumAt, slot);
  return checksum(summed);
}

}  // namespace

ArchiveRecordBytes ArchiveRecord::encode(int64_t slot) const {
  ArchiveRecordBytes bytes{};
  std::memcpy(bytes.data(), key.data(), key.size());
  put(bytes, kPageAt, page);
  put(bytes, kUsedAt, used);
  put(bytes, kTableAt, table_checksum);
  put(bytes, kChecksumAt, checksum_of(bytes, slot));
  return bytes;
}

std::optional<ArchiveRecord> ArchiveRecord::decode(std::span<const std::byte> bytes, int64_t slot) {
  if (std::ssize(bytes) < kArchiveRecordBytes ||
      get<uint64_t>(bytes, kChecksumAt) != checksum_of(bytes, slot)) {
    return std::nullopt;
  }
  ArchiveRecord record{.page = get<int64_t>(bytes, kPageAt),
                       .used = get<uint64_t>(bytes, kUsedAt),
                       .table_checksum = get<uint64_t>(bytes, kTableAt)};
  std::memcpy(record.key.data(), bytes.data(), record.key.size());
  if (record.page < 0) return std::nullopt;
  return record;
}

}  // namespace millrace::kvstore
