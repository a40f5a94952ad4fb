// SPDX-License-Identifier: Apache-2.0
// Where the rows of a page lie in an engine's blocks: the memory that a page fills as it travels (K
// of its tokens, then V), as pieces in that order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvclient/pull_request.h"

namespace millrace::kvclient {

struct PageRun;

using Pieces = std::vector<std::span<std::byte>>;

class PagePieces {
 public:
  // `request` must have passed check_request and outlives this. In its first and last page, rows of
  // tokens that are not asked for go to `sink`, which has room for two pages. Each row has its own
  // place there, so that a page can be checked where it lies.
  PagePieces(const PullRequest& request, const Manifest& manifest, std::span<std::byte> sink);

  // For a run that is staged, page after page, before it goes elsewhere. `run` outlives this.
  PagePieces(const PageRun& run, const PullRequest& request, const Manifest& manifest,
             std::span<std::byte> staging);

  // The memory that a page is staged in; empty for a page that goes directly to an engine's blocks.
  std::span<std::byte> staged(int64_t page) const;

  // Appends the page's pieces to `pieces`; contiguous pieces are joined. `layer` and `kv_head`
  // count in the model.
  void append(int32_t layer, int32_t kv_head, int64_t page, Pieces& pieces) const;

  int64_t page_bytes() const { return 2 * page_tokens_ * row_bytes_; }
  // Size of the pieces of a page in this layer, not counting the ends of the page and pieces that
  // join.
  int64_t run_bytes(int32_t layer) const;

 private:
  struct Plane;
  void append_plane(const Plane& plane, int64_t page, std::byte* sink, Pieces& pieces) const;

  const PageRun* const staged_run_ = nullptr;
  const PullRequest& request_;
  const int64_t page_tokens_;
  const int64_t row_bytes_;
  const std::span<std::byte> sink_;  // or the staging memory
};

}  // namespace millrace::kvclient
