// SPDX-License-Identifier: Apache-2.0
// Which context-parallel rank owns which tokens. Stripes are dealt in rounds of two stripes a rank,
// in snake order (0 1 2 3 3 2 1 0). This balances causal and content-dependent attention alike: the
// worst rank is within 1 % of the mean for vertical-slash, and 4 to 12 % for block-sparse at 32
// ranks, where two chunks a rank are off by half. Stripes of a round are equally long, so ranks
// have the same number of tokens, give or take a page or two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/index/tiling.h"

namespace millrace::engine {

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

// Consecutive tokens of one owner.
struct OwnedRun {
  int owner = 0;
  int64_t position = 0;
  int64_t local_row = 0;  // of the first token, on its owner
  int64_t num_tokens = 0;
};

class Partition {
 public:
  // Stripes have about `stripe_tokens` tokens, and always whole pages, so that each page and each
  // row tile has one owner. Stripes of at least kernels::kGroupRows are multiples of it, except in
  // the first round, where attention has least to do: with eight ranks, other lengths cost a rank
  // 6 to 13 % of its attention (docs/notebook/gpus.md). What cannot be dealt evenly is dealt page
  // by page at the end.
  //
  // Tokens before `first_position`, which begins a page, are cached and have no owner. The number
  // of that page decides which rank is dealt to first, so that what is added to a conversation bit
  // by bit does not all come to one rank.
  Partition(int64_t num_tokens, int num_ranks, int64_t stripe_tokens, int64_t first_position = 0);

  // The partition of a prompt that runs in `owner`'s lane: all tokens from `first_position` on are
  // `owner`'s.
  static Partition on_one_rank(int64_t num_tokens, int num_ranks, int owner,
                               int64_t first_position = 0);

  // 576 for prompts of up to 72K tokens, 2304 from 288K on, in proportion to the length in between.
  static int64_t default_stripe_tokens(int64_t num_tokens);

  int64_t num_tokens() const { return num_tokens_; }  // of the prompt, cached ones included
  int64_t first_position() const { return first_position_; }
  // Ascending. Adjacent stripes of one owner (where the snake turns) are one range.
  const std::vector<TokenRange>& ranges(int rank) const {
    return ranges_[static_cast<size_t>(rank)];
  }
  int64_t num_tokens(int rank) const;

  // Absolute positions of the rank's rows, in the order it holds them.
  std::vector<int32_t> positions(int rank) const;
  // The rank's row tiles; tile i of the vector is local tile number i.
  std::vector<kernels::RowTile> tiles(int rank) const;
  // The prompt's pages the rank holds, ascending.
  std::vector<int64_t> pages(int rank) const;
  int owner(int64_t position) const;
  // `tokens`, cut where the owner changes; ascending.
  std::vector<OwnedRun> owned_runs(TokenRange tokens) const;
  // The row at which `rank`, the owner of `position`, holds it.
  int64_t local_row(int rank, int64_t position) const;

 private:
  struct Stripe {
    TokenRange tokens;
    int owner = 0;
  };

  void deal_round(int64_t stripe_tokens);
  const Stripe& stripe_at(int64_t position) const;

  int64_t num_tokens_;
  int64_t first_position_;
  std::vector<Stripe> stripes_;  // ascending
  std::vector<std::vector<TokenRange>> ranges_;
};

}  // namespace millrace::engine
