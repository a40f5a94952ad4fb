// What the index of an archive says of a slot: 128 bytes, little-endian as all machines that Millrace runs on are.
//
//   0    32  key of the column (common/content/page_keys.h)
//   32    8  page of the prompt
//   40    8  used: the order of last uses, the highest used last
//   48    8  checksum of the slot's table (archive_layout.h)
//   56    8  of all before it and the slot's number, so that a record counts at its own place alone
//   64   64  zeros
//
// A slot without a column has zeros throughout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/content/page_keys.h"

namespace millrace::kvstore {

inline constexpr int64_t kArchiveRecordBytes = 128;
using ArchiveRecordBytes = std::array<std::byte, kArchiveRecordBytes>;

struct ArchiveRecord {
  PageContentKey key{};
  int64_t page = 0;
  uint64_t used = 0;
  uint64_t table_checksum = 0;

  ArchiveRecordBytes encode(int64_t slot) const;
  // None where the bytes are not of a record that was written whole for this slot.
  static std::optional<ArchiveRecord> decode(std::span<const std::byte> bytes, int64_t slot);

  bool operator==(const ArchiveRecord&) const = default;
};

}  // namespace millrace::kvstore
