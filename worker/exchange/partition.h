// Which context-parallel rank owns which tokens: stripes dealt in rounds of two to a rank, in snake
// order (0 1 2 3 3 2 1 0), which balances causal and content-dependent attention alike (worst rank
// within 1 % of the mean for vertical-slash, 4 to 12 % for block-sparse at 32 ranks, where two
// chunks a rank are off by half). Stripes of a round are equally long, so ranks have the same
// number of tokens but for a page or two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/index/tiling.h"

namespace millrace::worker {

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
  // Stripes of about `stripe_tokens`, and whole pages in any case, so that pages and row tiles have
  // one owner. Those of at least kernels::kGroupRows are multiples of it but for the first round's,
  // where attention has least to do: other lengths cost a rank of eight 6 to 13 % of its attention
  // (docs/notebook/gpus.md). What does not go round evenly is dealt page by page at
  // the end.
  //
  // With `first_position`, of a page, the tokens before it are nobody's: they are cached. Ranks begin in
  // turn, by that page, so that what is added to a conversation bit by bit does not all come to one.
  Partition(int64_t num_tokens, int num_ranks, int64_t stripe_tokens, int64_t first_position = 0);

  // All tokens from `first_position` on are `owner`'s: of a prompt that runs in its lane.
  static Partition on_one_rank(int64_t num_tokens, int num_ranks, int owner,
                               int64_t first_position = 0);

  // 576 tokens up to 72K, 2304 from 288K on, in between by length.
  static int64_t default_stripe_tokens(int64_t num_tokens);

  int64_t num_tokens() const { return num_tokens_; }  // of the prompt, cached ones included
  int64_t first_position() const { return first_position_; }
  // Ascending; neighbouring stripes of one owner (the turns of the snake) are one range.
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
  // The tokens [begin, end) cut where the owner changes, ascending.
  std::vector<OwnedRun> owned_runs(TokenRange tokens) const;
  // Where its owner holds the row of `position`.
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

}  // namespace millrace::worker
