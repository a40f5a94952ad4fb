// SPDX-License-Identifier: Apache-2.0
#include "worker/events/group_cache.h"

#include <utility>

namespace millrace::worker {

namespace {

protocol::PlanOrigin origin_of(const kvstore::CachedPrompt& prompt) {
  protocol::PlanOrigin origin;
  origin.set_head_plan(prompt.head_plan);
  origin.set_min_recall(prompt.min_recall);
  origin.set_num_tokens(prompt.token_ids.size());
  origin.set_impure(prompt.impure);
  origin.set_origin(prompt.origin);
  return origin;
}

}  // namespace

GroupCache::GroupCache(kvstore::CachedPages& store, int num_tp_ranks, EventPublisher* publisher)
    : store_(store),
      read_until_(store.cache_log_end()),
      held_(num_tp_ranks, /*has_tokens=*/publisher != nullptr),
      publisher_(publisher) {}

size_t GroupCache::most_kept_pages() const {
  return makes_events() ? JournalFile::kMaxPagesWithTokens : JournalFile::kMaxPages;
}

protocol::CachedPrefixes GroupCache::start_with(JournalFile::Contents contents,
                                                std::span<const std::vector<int>> owners,
                                                JournalFile journal) {
  const auto change = held_.restore(contents.pages, owners);
  if (makes_events()) publisher_->publish_start(events_of(change));
  protocol::CachedPrefixes report;
  report.mutable_added()->Add(change.prefixes.begin(), change.prefixes.end());
  report.mutable_origins()->Add(contents.origins.begin(), contents.origins.end());
  journal_.emplace(std::move(journal), most_kept_pages());
  journal_->begin_with(std::move(contents));
  return report;
}

protocol::CachedPrefixes GroupCache::read() {
  using Kind = kvstore::CacheChange::Kind;
  auto news = store_.read_cache_log(read_until_);
  read_until_ = news.end;
  if (news.is_whole) {
    is_left_ = true;
    lost_.clear();
  }
  protocol::CachedPrefixes report;
  for (const auto& change : news.changes) {
    if (change.kind == Kind::kPrompt) {
      const auto origin = origin_of(*change.prompt);
      report.MergeFrom(report_of(held_.add(*change.prompt), &origin));
    } else if ((change.kind == Kind::kAdded) == is_left_) {
      lost_.insert(block_hash(change.key));
    } else {
      lost_.erase(block_hash(change.key));
    }
  }
  return report;
}

LostPages GroupCache::take_lost() {
  LostPages taken{.pages = {lost_.begin(), lost_.end()},
                  .are_all_left = std::exchange(is_left_, false)};
  lost_.clear();
  return taken;
}

protocol::CachedPrefixes GroupCache::lost(std::span<const LostPages> by_rank) {
  return report_of(held_.remove(by_rank), nullptr);
}

protocol::CachedPrefixes GroupCache::report_of(HeldChange change,
                                               const protocol::PlanOrigin* origin) {
  if (makes_events()) publisher_->publish(events_of(change));
  protocol::CachedPrefixes report;
  report.mutable_added()->Add(change.prefixes.begin(), change.prefixes.end());
  report.mutable_gone()->Add(change.gone_prefixes.begin(), change.gone_prefixes.end());
  if (origin != nullptr) *report.add_origins() = *origin;
  if (!journal_) return report;
  JournalFile::Contents added{.pages = std::move(change.stored), .origins = {}};
  if (origin != nullptr) added.origins.push_back(*origin);
  journal_->add(std::move(added), [this] { return held_.all(); });
  return report;
}

}  // namespace millrace::worker
