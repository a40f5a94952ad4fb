// SPDX-License-Identifier: Apache-2.0
#include "kvstore/kept/prefix_loader.h"

#include <algorithm>
#include <ranges>

#include "common/log.h"

namespace millrace::kvstore {

namespace {

// Readers wait meanwhile for the thread that tends the store: 10 ms for columns of an 8B model on
// an NVMe disk.
constexpr int64_t kColumnsAtOnce = 4;
// A disk that brings nothing within this time is too slow to be read ahead of any request.
constexpr Duration kPatience = std::chrono::seconds(1);

}  // namespace

PrefixLoader::PrefixLoader(ColumnKeeper& keeper, const Residency& residency,
                           const PrefixCache& cache, std::mutex& mutex, int64_t num_rows)
    : keeper_(keeper),
      residency_(residency),
      cache_(cache),
      mutex_(mutex),
      num_rows_(num_rows),
      left_(keeper.kept_by_use()) {
  std::ranges::reverse(left_);
}

bool PrefixLoader::next() {
  if (left_.empty()) return false;
  const auto keys = keeper_.answers() ? take() : std::vector<PageContentKey>();
  if (keys.empty()) {
    end();
    return false;
  }
  const int64_t sequence = left_.back().sequence;
  const auto brought = keeper_.bring_ahead(keys, sequence, kPatience);
  num_columns_ += brought.num_columns;
  left_.resize(left_.size() - static_cast<size_t>(brought.num_columns));
  if (brought.failure) continue_after(*brought.failure, brought.num_columns > 0);
  if (left_.empty()) end();
  return true;
}

std::vector<PageContentKey> PrefixLoader::take() {
  const std::lock_guard lock(mutex_);
  const auto is_wanted = [this](const PrefixArchive::Use& use) {
    return keeper_.has(use.key) && cache_.find(use.key) == nullptr;
  };
  while (!left_.empty() && !is_wanted(left_.back())) left_.pop_back();
  const auto most =
      static_cast<size_t>(std::min(kColumnsAtOnce, residency_.available_in_memory() / num_rows_));
  std::vector<PageContentKey> keys;
  for (const auto& use : left_ | std::views::reverse) {
    const bool is_next = keys.size() < most && use.sequence == left_.back().sequence;
    if (!is_next || !is_wanted(use)) break;
    keys.push_back(use.key);
  }
  return keys;
}

void PrefixLoader::continue_after(const Error& failure, bool has_brought) {
  log::debug("kvstore: of the prefixes that were kept: {}", failure.to_string());
  switch (failure.code) {
    case Errc::kDeadlineExceeded:
      if (!has_brought) left_.clear();
      return;
    case Errc::kExhausted:
      left_.clear();
      return;
    default: {
      // Damaged, and forgotten. The rest of that prompt is of no use.
      const int64_t sequence = left_.back().sequence;
      std::erase_if(left_, [&](const auto& use) { return use.sequence == sequence; });
    }
  }
}

void PrefixLoader::end() {
  left_.clear();
  if (num_columns_ == 0) return;
  log::info("kvstore: {} kept pages of prefixes are in memory again", num_columns_ * num_rows_);
  num_columns_ = 0;
}

}  // namespace millrace::kvstore
