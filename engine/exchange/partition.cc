// SPDX-License-Identifier: Apache-2.0
#include "engine/exchange/partition.h"

#include <algorithm>

#include "common/check.h"
#include "common/units.h"

namespace millrace::engine {

using kernels::kGroupRows;
using kernels::kPageTokens;

Partition::Partition(int64_t num_tokens, int num_ranks, int64_t stripe_tokens,
                     int64_t first_position)
    : num_tokens_(num_tokens),
      first_position_(first_position),
      ranges_(static_cast<size_t>(num_ranks)) {
  MR_CHECK(stripe_tokens > 0, "stripes of {} tokens", stripe_tokens);
  MR_CHECK(first_position % kPageTokens == 0 && first_position >= 0 && first_position <= num_tokens,
           "tokens {} to {}", first_position, num_tokens);
  const int64_t num_dealt = num_tokens - first_position;
  const int64_t turn = num_dealt / (2 * num_ranks) / kPageTokens * kPageTokens;
  const int64_t unit = std::min(stripe_tokens, turn) < kGroupRows ? kPageTokens : kGroupRows;
  const int64_t units = turn / unit;
  const int64_t num_rounds = std::min(units, std::max<int64_t>(1, ceil_div(turn, stripe_tokens)));
  for (int64_t round = 0; round < num_rounds; ++round) {
    const int64_t own_units = units * (round + 1) / num_rounds - units * round / num_rounds;
    deal_round(own_units * unit + (round == 0 ? turn % unit : 0));
  }
  deal_round(kPageTokens);
}

Partition Partition::on_one_rank(int64_t num_tokens, int num_ranks, int owner,
                                 int64_t first_position) {
  Partition partition(num_tokens, num_ranks, default_stripe_tokens(num_tokens), first_position);
  partition.stripes_.clear();
  for (auto& ranges : partition.ranges_) ranges.clear();
  if (first_position == num_tokens) return partition;
  const TokenRange all{.begin = first_position, .end = num_tokens};
  partition.stripes_.push_back({.tokens = all, .owner = owner});
  partition.ranges_[static_cast<size_t>(owner)].push_back(all);
  return partition;
}

// Deals until all tokens are dealt, or every rank has two more stripes.
void Partition::deal_round(int64_t stripe_tokens) {
  const int num_ranks = static_cast<int>(ranges_.size());
  const auto first_rank = static_cast<int>(first_position_ / kPageTokens % num_ranks);
  int64_t begin = stripes_.empty() ? first_position_ : stripes_.back().tokens.end;
  for (int place = 0; place < 2 * num_ranks && begin < num_tokens_; ++place) {
    const int turned = place < num_ranks ? place : 2 * num_ranks - 1 - place;
    const int owner = (turned + first_rank) % num_ranks;
    const TokenRange stripe{begin, std::min(begin + stripe_tokens, num_tokens_)};
    stripes_.push_back({.tokens = stripe, .owner = owner});
    auto& ranges = ranges_[static_cast<size_t>(owner)];
    if (!ranges.empty() && ranges.back().end == stripe.begin) {
      ranges.back().end = stripe.end;
    } else {
      ranges.push_back(stripe);
    }
    begin = stripe.end;
  }
}

int64_t Partition::default_stripe_tokens(int64_t num_tokens) {
  return std::clamp<int64_t>(num_tokens / 128, 3 * kGroupRows, 12 * kGroupRows);
}

const Partition::Stripe& Partition::stripe_at(int64_t position) const {
  MR_CHECK(position >= first_position_ && position < num_tokens_, "position {} of [{}, {})",
           position, first_position_, num_tokens_);
  return *std::partition_point(stripes_.begin(), stripes_.end(), [position](const Stripe& stripe) {
    return stripe.tokens.end <= position;
  });
}

int Partition::owner(int64_t position) const {
  return stripe_at(position).owner;
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
    const Stripe& stripe = stripe_at(position);
    const int64_t end = std::min(tokens.end, stripe.tokens.end);
    runs.push_back({.owner = stripe.owner,
                    .position = position,
                    .local_row = local_row(stripe.owner, position),
                    .num_tokens = end - position});
    position = end;
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
    for (int64_t page = range.begin / kPageTokens; page < ceil_div(range.end, kPageTokens);
         ++page) {
      pages.push_back(page);
    }
  }
  return pages;
}

}  // namespace millrace::engine
