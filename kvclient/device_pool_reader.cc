// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device_pool_reader.h"

#include <algorithm>

namespace millrace::kvclient {

namespace {

constexpr std::string_view kTransportName = "device-pool";
constexpr uint64_t kAlign = 16;  // of PooledPage::offset

}  // namespace

Result<std::vector<PlacedRun>> DevicePoolReader::read(const PlaceClient::Answer& answer,
                                                      const PagePieces& pieces,
                                                      std::span<const std::byte> sink,
                                                      DeviceLane& lane, PullOutcome& outcome) {
  const PlacedRun& placed = answer.places;
  if (answer.device_pool == nullptr || placed.pages.empty()) return std::vector{placed};
  const int64_t page_bytes = pieces.page_bytes();
  indices_.clear();
  pages_.clear();
  pieces_.clear();
  std::vector<size_t> left;
  for (size_t i = 0; i < placed.pages.size(); ++i) {
    const int64_t offset = placed.pages[i].device_offset;
    const bool lies_there = offset >= 0 && offset % static_cast<int64_t>(kAlign) == 0 &&
                            page_bytes <= answer.device_pool->bytes() - offset;
    if (lies_there) {
      add(placed, i, pieces, sink);
    } else {
      left.push_back(i);
    }
  }
  if (pages_.empty()) return std::vector{placed};
  MR_ASSIGN_OR_RETURN(const auto right,
                      lane.gather(*answer.device_pool, page_bytes, pages_, pieces_));
  for (size_t i = 0; i < right.size(); ++i) {
    outcome.add_bytes(kTransportName, page_bytes);
    if (right[i]) {
      ++outcome.pages_by_tier[Tier::kDevice];
      continue;
    }
    ++outcome.corrupt_pages;
    left.push_back(indices_[i]);
  }
  std::ranges::sort(left);
  return placed.parts(left);
}

void DevicePoolReader::add(const PlacedRun& placed, size_t index, const PagePieces& pieces,
                           std::span<const std::byte> sink) {
  const PlacedPage& page = placed.pages[index];
  const auto first = static_cast<uint32_t>(pieces_.size());
  page_pieces_.clear();
  pieces.append(placed.run.layer, placed.run.kv_head, placed.run.page(static_cast<int64_t>(index)),
                page_pieces_);
  size_t from = 0;
  for (const auto& piece : page_pieces_) {
    if (piece.data() < sink.data() || piece.data() >= sink.data() + sink.size()) {
      pieces_.push_back({.to = piece.data(),
                         .from = static_cast<uint32_t>(from),
                         .bytes = static_cast<uint32_t>(piece.size())});
    }
    from += piece.size();
  }
  indices_.push_back(index);
  pages_.push_back({.offset = static_cast<uint64_t>(page.device_offset),
                    .checksum = page.page.checksum,
                    .first_piece = first,
                    .num_pieces = static_cast<uint32_t>(pieces_.size()) - first});
}

}  // namespace millrace::kvclient
