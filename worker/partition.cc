#include "worker/partition.h"

#include <algorithm>

#include "common/check.h"
#include "common/units.h"

namespace millrace::worker {

namespace {

int snake_owner(int64_t stripe, int num_ranks) {
  const auto place = static_cast<int>(stripe % (2 * num_ranks));
  return place < num_ranks ? place : 2 * num_ranks - 1 - place;
}

}  // namespace

Partition::Partition(int64_t num_tokens, int num_ranks, int64_t stripe_tokens)
    : num_tokens_(num_tokens),
      stripe_tokens_(stripe_tokens),
      num_ranks_(num_ranks),
      ranges_(static_cast<size_t>(num_ranks)) {
  MR_CHECK(stripe_tokens > 0 && stripe_tokens % kernels::kPageTokens == 0,
           "stripe of {} tokens is no multiple of {}", stripe_tokens, kernels::kPageTokens);
  for (int64_t begin = 0; begin < num_tokens; begin += stripe_tokens) {
    const TokenRange stripe{begin, std::min(begin + stripe_tokens, num_tokens)};
    auto& ranges = ranges_[static_cast<size_t>(owner(begin))];
    if (!ranges.empty() && ranges.back().end == stripe.begin) {
      ranges.back().end = stripe.end;
    } else {
      ranges.push_back(stripe);
    }
  }
}

int64_t Partition::default_stripe_tokens(int64_t num_tokens, int num_ranks) {
  const int64_t wanted = std::clamp<int64_t>(num_tokens / 512, 512, 2048);
  const int64_t fits = num_tokens / (2 * num_ranks);
  return std::max(kernels::kPageTokens,
                  std::min(wanted, fits) / kernels::kPageTokens * kernels::kPageTokens);
}

int Partition::owner(int64_t position) const {
  return snake_owner(position / stripe_tokens_, num_ranks_);
}

int64_t Partition::local_row(int rank, int64_t position) const {
  int64_t row = 0;
  for (const auto& range : ranges(rank)) {
    if (position < range.end) {
      MR_CHECK(position >= range.begin, "position {} is not on rank {}", position, rank);
      return row + position - range.begin;
    }
    row += range.size();
  }
  MR_CHECK(false, "position {} is not on rank {}", position, rank);
}

std::vector<OwnedRun> Partition::owned_runs(TokenRange tokens) const {
  std::vector<OwnedRun> runs;
  for (int64_t position = tokens.begin; position < tokens.end;) {
    const int64_t stripe_end =
        std::min(tokens.end, (position / stripe_tokens_ + 1) * stripe_tokens_);
    const int rank = owner(position);
    runs.push_back({.owner = rank,
                    .position = position,
                    .local_row = local_row(rank, position),
                    .num_tokens = stripe_end - position});
    position = stripe_end;
  }
  return runs;
}

int64_t Partition::num_tokens(int rank) const {
  int64_t sum = 0;
  for (const auto& range : ranges(rank)) sum += range.size();
  return sum;
}

std::vector<int32_t> Partition::positions(int rank) const {
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(num_tokens(rank)));
  for (const auto& range : ranges(rank)) {
    for (int64_t p = range.begin; p < range.end; ++p) positions.push_back(static_cast<int32_t>(p));
  }
  return positions;
}

std::vector<kernels::RowTile> Partition::tiles(int rank) const {
  std::vector<kernels::RowTile> tiles;
  int64_t local_row = 0;
  for (const auto& range : ranges(rank)) {
    for (int64_t p = range.begin; p < range.end; p += kernels::kTileRows) {
      const int64_t rows = std::min(kernels::kTileRows, range.end - p);
      tiles.push_back({.local_row = local_row, .position = p, .num_rows = rows});
      local_row += rows;
    }
  }
  return tiles;
}

std::vector<int64_t> Partition::pages(int rank) const {
  std::vector<int64_t> pages;
  for (const auto& range : ranges(rank)) {
    for (int64_t page = range.begin / kernels::kPageTokens;
         page < ceil_div(range.end, kernels::kPageTokens); ++page) {
      pages.push_back(page);
    }
  }
  return pages;
}

}  // namespace millrace::worker
