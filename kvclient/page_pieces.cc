// SPDX-License-Identifier: Apache-2.0
#include "kvclient/page_pieces.h"

#include <algorithm>

#include "kvclient/order/page_run.h"
#include "kvclient/page_decoder.h"

namespace millrace::kvclient {

namespace {

void join(Pieces& pieces, std::byte* at, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (!pieces.empty() && pieces.back().data() + pieces.back().size() == at) {
    pieces.back() = {pieces.back().data(), pieces.back().size() + size};
  } else {
    pieces.emplace_back(at, size);
  }
}

}  // namespace

// K or V of one layer and kv head.
struct PagePieces::Plane {
  std::byte* base;
  int64_t block_stride;
  int64_t token_stride;
};

PagePieces::PagePieces(const PullRequest& request, const Manifest& manifest,
                       std::span<std::byte> sink)
    : request_(request),
      page_tokens_(manifest.layout.page_tokens),
      row_bytes_(manifest.layout.head_dim * PageDecoder(request, manifest).element_bytes()),
      sink_(sink) {}

PagePieces::PagePieces(const PageRun& run, const PullRequest& request, const Manifest& manifest,
                       std::span<std::byte> staging)
    : staged_run_(&run),
      request_(request),
      page_tokens_(manifest.layout.page_tokens),
      row_bytes_(manifest.layout.head_dim * PageDecoder(request, manifest).element_bytes()),
      sink_(staging) {}

std::span<std::byte> PagePieces::staged(int64_t page) const {
  if (staged_run_ == nullptr) return {};
  const auto& named = staged_run_->named;
  const int64_t index = named.empty()
                            ? page - staged_run_->first_page
                            : std::lower_bound(named.begin(), named.end(), page) - named.begin();
  const auto bytes = static_cast<size_t>(2 * page_tokens_ * row_bytes_);
  return sink_.subspan(static_cast<size_t>(index) * bytes, bytes);
}

void PagePieces::append(int32_t layer, int32_t kv_head, int64_t page, Pieces& pieces) const {
  if (staged_run_ != nullptr) {
    const auto memory = staged(page);
    join(pieces, memory.data(), std::ssize(memory));
    return;
  }
  if (!request_.pages.empty()) {
    const PageName name{.layer = layer, .kv_head = kv_head, .page = page};
    const auto named =
        std::lower_bound(request_.pages.begin(), request_.pages.end(), name,
                         [](const NamedPage& a, const PageName& b) { return a.name < b; });
    join(pieces, named->to, 2 * page_tokens_ * row_bytes_);
    return;
  }
  const auto& to = request_.layers[static_cast<size_t>(layer - request_.first_layer)];
  const int64_t head = (kv_head - request_.first_kv_head) * to.head_stride;
  const int64_t half_page = page_tokens_ * row_bytes_;
  const bool first = page == request_.first_token / page_tokens_;
  std::byte* const sink = sink_.data() + (first ? 0 : 2 * half_page);
  append_plane({to.k + head, to.block_stride, to.token_stride}, page, sink, pieces);
  append_plane({to.v + head, to.block_stride, to.token_stride}, page, sink + half_page, pieces);
}

// `sink`: of the whole plane.
void PagePieces::append_plane(const Plane& plane, int64_t page, std::byte* sink,
                              Pieces& pieces) const {
  const int64_t block_tokens = request_.block_tokens;
  const int64_t end = (page + 1) * page_tokens_;
  const int64_t first_wanted = request_.first_token;
  const int64_t end_wanted = first_wanted + request_.num_tokens;
  for (int64_t token = page * page_tokens_; token < end;) {
    if (token < first_wanted || token >= end_wanted) {
      const int64_t count = (token < first_wanted ? std::min(first_wanted, end) : end) - token;
      join(pieces, sink + token % page_tokens_ * row_bytes_, count * row_bytes_);
      token += count;
      continue;
    }
    const int64_t at = token - first_wanted;
    const int64_t row = at % block_tokens;
    const int64_t count = std::min({block_tokens - row, end - token, end_wanted - token});
    const int64_t block = request_.block_ids[static_cast<size_t>(at / block_tokens)];
    std::byte* rows = plane.base + block * plane.block_stride + row * plane.token_stride;
    if (plane.token_stride == row_bytes_) {
      join(pieces, rows, count * row_bytes_);
    } else {
      for (int64_t i = 0; i < count; ++i) join(pieces, rows + i * plane.token_stride, row_bytes_);
    }
    token += count;
  }
}

int64_t PagePieces::run_bytes(int32_t layer) const {
  if (staged_run_ != nullptr || !request_.pages.empty()) return 2 * page_tokens_ * row_bytes_;
  const auto& to = request_.layers[static_cast<size_t>(layer - request_.first_layer)];
  if (to.token_stride != row_bytes_) return row_bytes_;
  return row_bytes_ * std::min<int64_t>(page_tokens_, request_.block_tokens);
}

}  // namespace millrace::kvclient
