// SPDX-License-Identifier: Apache-2.0
#include "worker/store/prefix_cost.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/page_tokens.h"

namespace millrace::worker {

namespace {

// The seconds that each rank has read for, and the largest of them, which never falls.
class RankSeconds {
 public:
  explicit RankSeconds(int num_ranks) : of_rank_(static_cast<size_t>(num_ranks)) {}
  void add(int rank, double seconds) {
    double& sum = of_rank_[static_cast<size_t>(rank)];
    sum += seconds;
    most_ = std::max(most_, sum);
  }
  double most() const { return most_; }

 private:
  std::vector<double> of_rank_;
  double most_ = 0;
};

}  // namespace

int64_t num_worth_loading(std::span<const SlowPage> pages, const PrefixTimes& times) {
  RankSeconds reading(times.num_owners), loading(times.num_owners);
  const auto prompt_s = [&](int64_t num_pages) {
    const double computing_s = times.rows.seconds(num_pages * kPageTokens, times.num_tokens);
    return reading.most() + (times.loads_beside ? std::max(loading.most(), computing_s)
                                                : loading.most() + computing_s);
  };
  int64_t best = 0;
  double best_s = prompt_s(0);
  for (int64_t page = 0; page < std::ssize(pages); ++page) {
    const SlowPage& slow = pages[static_cast<size_t>(page)];
    reading.add(slow.owner, slow.read_s);
    loading.add(slow.owner, slow.load_s);
    const double with_it_s = prompt_s(page + 1);
    const bool in_memory = reading.most() == 0 && loading.most() == 0;
    if (!in_memory && with_it_s > best_s) continue;
    best = page + 1;
    best_s = with_it_s;
  }
  return prompt_s(std::ssize(pages)) - best_s < times.least_gain_s ? std::ssize(pages) : best;
}

Duration patience_for_kept(std::span<const SlowPage> pages, const std::optional<RowCost>& rows,
                           Duration most) {
  const auto first = std::ranges::find_if(pages, &SlowPage::kept);
  if (first == pages.end()) return Duration::zero();
  if (!rows) return std::min(most, kUnmeasuredPatience);
  const double computing_s = rows->seconds((first - pages.begin()) * kPageTokens,
                                           std::ssize(pages) * int64_t{kPageTokens});
  if (computing_s >= seconds(most)) return most;
  const std::chrono::duration<double> computing(computing_s);
  return std::min(most, std::max(kLeastPatience, std::chrono::duration_cast<Duration>(computing)));
}

}  // namespace millrace::worker
