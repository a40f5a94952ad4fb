// SPDX-License-Identifier: Apache-2.0
// An archive index' record of one slot: 128 bytes, little-endian like all machines that Millrace
// runs on.
//
//   0    32  key of the column (common/content/page_keys.h)
//   32    8  page of the prompt
//   40    8  used: the order of last uses, the highest used last
//   48    8  checksum of the slot's table (archive_layout.h)
//   56    8  checksum of all before it and the slot's number: it counts only at its own place
//   64   64  zeros
//
// The record of a slot without a column is all zeros.
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
  // None unless the bytes are a record that was written whole for this slot.
  static std::optional<ArchiveRecord> decode(std::span<const std::byte> bytes, int64_t slot);

  bool operator==(const ArchiveRecord&) const = default;
};

}  // namespace millrace::kvstore
