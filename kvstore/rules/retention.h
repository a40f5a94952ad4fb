// SPDX-License-Identifier: Apache-2.0
// Which columns of the prefix cache stay longest: GreedyDual-Size with frequency (Cao and Irani
// 1997; Cherkasova 1998; for cached prefixes: RAGCache, Jin et al. 2024). Pure.
//
//   worth = clock at its last use + uses * cost
//
// All columns have the same size, so nothing is divided by it. The clock is the worth of what gave
// way last. So a column that is no longer used falls behind, and the later, the more it cost and
// the more prompts have used it. Among columns worth the same, the least recently used goes first,
// and among these the deepest in the prompt.
//
// A column is never worth less than one that follows it in a prompt. So none goes before the
// columns that need it, although nothing records which follows which. This requires of those who
// use and price columns that
//   - whoever uses a column uses all before it, at one clock;
//   - a prompt's columns have one cost: what it took to compute the prompt, per column.
// So a column has been used at least as often and as recently as any that follows it, and has the
// cost of the dearest prompt through it.
#pragma once

#include <cstdint>
#include <tuple>

namespace millrace::kvstore {

// Uses beyond these do not count: otherwise a column that was asked for a thousand times and never
// again would stay that many times longer. In simulation 8, 16 and no limit saved the same; 4 saved
// up to 0.7 % of all computing less (docs/adr/0022-eviction-by-worth.md).
inline constexpr int64_t kMostUses = 8;

class Retention {
 public:
  // `last_used`: the sequence of the request that brings the column, which does not count as a use
  // yet.
  explicit Retention(int64_t last_used) : last_used_(last_used) {}

  // A use by the `sequence`-th request. It counts once, however often it is called.
  void use(int64_t sequence, double clock);
  // The cost of a prompt through the column; the highest one stays. 1 is the cost of a column with
  // nothing before it.
  void raise_cost(double cost, double clock);
  // Before its first use a column is worth nothing, except that it comes after what gave way
  // already.
  void bring_forward(double clock);

  double worth() const { return worth_; }
  int64_t last_used() const { return last_used_; }

  // The order of a column that is `page` of its prompt: the lowest goes first.
  std::tuple<double, int64_t, int64_t> order(int64_t page) const {
    return {worth_, last_used_, -page};
  }

 private:
  void keep_for(double clock);

  double worth_ = 0;
  double cost_ = 1;
  int64_t num_uses_ = 0;
  int64_t last_used_;
};

}  // namespace millrace::kvstore
