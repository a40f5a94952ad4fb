// Which columns of the prefix cache stay longest: GreedyDual-Size with frequency (Cao and Irani 1997; Cherkasova 1998; for
// cached prefixes: RAGCache, Jin et al. 2024). Pure.
//
//   worth = clock at its last use + uses * cost
//
// All columns are of one size, so nothing is divided by it. The clock is the worth of what gave way last, so what is not
// used any more falls behind, and all the later the more it cost and the more prompts have used it. Below it, of columns worth the
// same, the one used least lately goes first, of these the deepest in the prompt.
//
// A column is never worth less than one that follows it in a prompt, so none goes before those that need it, without
// a look at who follows whom. That needs, of those who use and price columns, that
//   - who uses a column uses all before it, at one clock;
//   - a prompt's columns have one cost: what it took to compute the prompt, by the column.
// So a column has been used at least as often as any that follows it, as lately, and has the cost of the dearest prompt
// through it.
#pragma once

#include <cstdint>
#include <tuple>

namespace millrace::kvstore {

// Uses beyond these do not count: what was asked for a thousand times and never again would stay as many times longer.
// In simulation 8, 16 and no limit saved the same, 4 up to 0.7 % of all computing less (docs/adr/0022-what-gives-way.md).
inline constexpr int64_t kMostUses = 8;

class Retention {
 public:
  // `last_used`: the sequence of the request that brings the column, which has not counted as a use yet.
  explicit Retention(int64_t last_used) : last_used_(last_used) {}

  // By the `sequence`-th request. However often that says so, it counts once.
  void use(int64_t sequence, double clock);
  // Of a prompt through it: of the dearest it stays. 1: of a column with nothing before it.
  void raise_cost(double cost, double clock);
  // It is not worth anything before it is used, but for its place behind what gave way.
  void bring_forward(double clock);

  double worth() const { return worth_; }
  int64_t last_used() const { return last_used_; }

  // Of a column, `page` of its prompt: the lowest goes first.
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
