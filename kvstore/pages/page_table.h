// SPDX-License-Identifier: Apache-2.0
// All pages of one request on this rank: the columns it holds, in the order of the prompt, and how
// its last rows score them. First come the columns of a cached prefix, which it shares, then those
// that it computes. Guarded by the store's lock (tiered_kv_store.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "kvstore/pages/page.h"
#include "kvstore/pages/page_column.h"

namespace millrace::kvstore {

class PageTable : public std::enable_shared_from_this<PageTable> {
 public:
  // `prefix`: written columns of pages before all of `pages`; the caller counts who holds them.
  // `sequence` as in PageColumn.
  PageTable(std::string request_id, const KvGeometry& geometry, int64_t num_tokens,
            std::span<const int64_t> pages, int64_t sequence,
            std::vector<std::shared_ptr<PageColumn>> prefix = {});
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  const std::string& request_id() const { return request_id_; }
  int64_t sequence() const { return sequence_; }
  std::span<const int64_t> pages() const { return pages_; }
  int64_t num_prompt_pages() const { return num_prompt_pages_; }
  std::span<const std::shared_ptr<PageColumn>> columns() const { return columns_; }
  int64_t num_prefix_pages() const { return static_cast<int64_t>(num_prefix_columns_); }
  // The columns that this request computes.
  std::span<const std::shared_ptr<PageColumn>> own_columns() const {
    return columns().subspan(num_prefix_columns_);
  }
  int64_t num_entries() const { return std::ssize(columns_) * num_rows(); }

  // kNotFound names what does not exist: the layer or the kv head.
  Result<int64_t> row_of(int32_t layer, int32_t kv_head) const;
  // The row's pages, in the order of pages(). Errors as row_of().
  Result<std::vector<PageEntry*>> head(int32_t layer, int32_t kv_head);
  // The pages with these numbers, which must ascend: kInvalidArgument if they do not or there is
  // none. kNotFound names the first that this rank does not hold or has dropped.
  Result<std::vector<PageEntry*>> select(int32_t layer, int32_t kv_head,
                                         std::span<const int64_t> pages);
  // Scores of all pages of a row, in the order of pages().
  void set_scores(int64_t row, std::span<const float> scores);
  std::span<const float> scores(int64_t row) const;
  float score_of(const PageEntry& entry) const;
  // The request gives up a page of a row: select() no longer finds it.
  void drop(const PageEntry& entry);
  bool is_dropped(int64_t row, int64_t place) const {
    return !dropped_.empty() && dropped_[static_cast<size_t>(row * std::ssize(pages_) + place)];
  }
  int64_t num_dropped() const { return num_dropped_; }
  // For entries of one row. kUnavailable names the first that may not be read yet.
  Result<void> check_readable(std::span<PageEntry* const> entries) const;

  // Guarded by the store's lock like the entries.
  int64_t num_unwritten = 0;  // reserved, no slot taken yet
  int64_t num_written = 0;    // settled in their slots, those of the prefix included
  bool sealed = false;
  bool has_been_read = false;  // pages of it, or their digests, under its lease
  bool dead = false;           // forgotten

 private:
  int64_t place_of(const PageEntry& entry) const;
  int64_t num_rows() const { return int64_t{geometry_.num_layers} * geometry_.num_kv_heads; }

  std::string request_id_;
  KvGeometry geometry_;
  int64_t num_prompt_pages_;
  int64_t sequence_;
  std::vector<int64_t> pages_;
  std::vector<std::shared_ptr<PageColumn>> columns_;  // one a page
  size_t num_prefix_columns_;
  std::vector<float> scores_;  // [rows, pages]
  std::vector<bool> scored_;   // [rows]
  std::vector<bool> dropped_;  // [rows, pages]; empty: none
  int64_t num_dropped_ = 0;
};

}  // namespace millrace::kvstore
