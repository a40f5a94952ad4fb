// SPDX-License-Identifier: Apache-2.0
// The layout of a column in a slot of the archive: its pages by row, then the table with the
// digests of all rows and the checksums of their pages, then padding up to a multiple of the
// system's page size.
#pragma once

#include <cstdint>

namespace millrace::kvstore {

struct ArchiveLayout {
  int64_t num_rows = 0;  // pages of a column
  int64_t page_bytes = 0;
  int64_t digest_bytes = 0;  // of a page; a multiple of 4

  int64_t table_bytes() const {
    return num_rows * (digest_bytes + static_cast<int64_t>(sizeof(uint64_t)));
  }
  int64_t slot_bytes() const {
    constexpr int64_t kSystemPage = 4096;
    return (table_at() + table_bytes() + kSystemPage - 1) / kSystemPage * kSystemPage;
  }
  int64_t page_at(int64_t row) const { return row * page_bytes; }
  int64_t table_at() const { return num_rows * page_bytes; }
};

}  // namespace millrace::kvstore
