// SPDX-License-Identifier: Apache-2.0
#include "decode/page_intake.h"

#include <algorithm>

#include "kvclient/order/hot_list.h"

namespace millrace::decode {

namespace {

using kvclient::PageName;

// A reply of this many digests is as large as one of some megabytes of pages.
constexpr int32_t kDigestsPerRequest = 1024;
// Small enough that needed pages do not wait long behind it.
constexpr int64_t kFillBytes = 1 << 20;
// How often, while waiting for a layer, the intake checks whether it is to end.
constexpr std::chrono::milliseconds kWaitStep{200};

}  // namespace

PageIntake::PageIntake(const Parts& parts, const CacheShape& shape, double hot_share,
                       Deadline deadline)
    : parts_(parts),
      shape_(shape),
      hot_share_(hot_share),
      deadline_(deadline),
      client_(*parts.transport, *parts.manifest, {.pages_per_request = kDigestsPerRequest}),
      hot_(static_cast<size_t>(shape.num_layers)),
      rest_(static_cast<size_t>(shape.num_layers)) {
  times_.began = Clock::steady().now();
  thread_ = std::thread([this] {
    const auto end = run();
    const std::lock_guard lock(mutex_);
    if (!end.ok()) failure_ = end.error();
    changed_.notify_all();
  });
}

PageIntake::~PageIntake() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

bool PageIntake::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

Result<void> PageIntake::wait(DecodeStart start, Deadline deadline) {
  const Stage wanted = start == DecodeStart::kNeed  ? Stage::kDigests
                       : start == DecodeStart::kHot ? Stage::kHot
                                                    : Stage::kWhole;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.when(),
                           [&] { return stage_ >= wanted || failure_.has_value(); })) {
    return Error(Errc::kDeadlineExceeded, "what decoding begins with did not come in time");
  }
  if (stage_ < wanted) return *failure_;
  return {};
}

IntakeTimes PageIntake::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

void PageIntake::enter(Stage stage) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  const double now = seconds(Clock::steady().now() - times_.began);
  (stage == Stage::kDigests ? times_.digests_s
   : stage == Stage::kHot   ? times_.hot_s
                            : times_.whole_s) = now;
  changed_.notify_all();
}

// Digests of ready layers come before pages, because decoding can begin without the pages.
Result<void> PageIntake::run() {
  int32_t next = 0;  // layer
  bool room = true;
  size_t hot = 0;
  while (next < shape_.num_layers || (hot < hot_.size() && room)) {
    if (stopping()) return {};
    if (next < shape_.num_layers && next < parts_.feed->layers_ready()) {
      MR_RETURN_IF_ERROR(take_layer(next));
      if (++next == shape_.num_layers) enter(Stage::kDigests);
    } else if (room && static_cast<int32_t>(hot) < next) {
      if (hot_[hot].done == hot_[hot].pages.size()) {
        ++hot;
        continue;
      }
      MR_ASSIGN_OR_RETURN(room, fill(hot_[hot]));
    } else {
      const auto came = parts_.feed->wait_for_layer(next, Deadline::after(kWaitStep));
      if (!came.ok() && (came.error().code != Errc::kDeadlineExceeded || deadline_.passed())) {
        return came.error();
      }
    }
  }
  enter(Stage::kHot);
  if (room) MR_RETURN_IF_ERROR(fill_rest());
  if (!stopping()) enter(Stage::kWhole);
  return {};
}

Result<void> PageIntake::take_layer(int32_t layer) {
  int64_t bytes = 0;
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
    MR_ASSIGN_OR_RETURN(const auto digests, client_.pull_digests(layer, shape_.first_kv_head + h, 0,
                                                                 shape_.num_pages(), deadline_));
    MR_RETURN_IF_ERROR(parts_.digests->set(layer, h, digests));
    bytes += std::ssize(digests) * int64_t{sizeof(float)};
  }
  MR_RETURN_IF_ERROR(take_scores(layer));
  bytes += shape_.num_kv_heads * shape_.num_pages() * int64_t{sizeof(float)};
  const std::lock_guard lock(mutex_);
  times_.digest_bytes += bytes;
  times_.hot_pages += std::ssize(hot_[static_cast<size_t>(layer)].pages);
  return {};
}

Result<void> PageIntake::take_scores(int32_t layer) {
  MR_ASSIGN_OR_RETURN(auto scores, client_.pull_scores(layer, 1, shape_.first_kv_head,
                                                       shape_.num_kv_heads, deadline_));
  struct Scored {
    float score;
    PageName name;
  };
  std::vector<Scored> hot, rest;
  const auto num_pages = static_cast<size_t>(shape_.num_pages());
  for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
    auto row = std::span(scores).subspan(static_cast<size_t>(h) * num_pages, num_pages);
    for (size_t page = 0; page < num_pages; ++page) {
      if (!shape_.has_page(layer, h, static_cast<int64_t>(page))) row[page] = 0;
    }
    const auto is_hot = kvclient::hot_list(row, hot_share_);
    for (size_t page = 0; page < num_pages; ++page) {
      if (!shape_.has_page(layer, h, static_cast<int64_t>(page))) continue;
      const PageName name{layer, shape_.first_kv_head + h, static_cast<int64_t>(page)};
      parts_.pool->set_score(name, row[page]);
      (is_hot[page] ? hot : rest).push_back({row[page], name});
    }
    parts_.attention->expect(layer, h, std::count(is_hot.begin(), is_hot.end(), true));
  }
  const auto list = [](std::vector<Scored>& scored, Hot& to) {
    std::stable_sort(scored.begin(), scored.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    for (const Scored& page : scored) to.pages.push_back(page.name);
  };
  list(hot, hot_[static_cast<size_t>(layer)]);
  list(rest, rest_[static_cast<size_t>(layer)]);
  return {};
}

Result<bool> PageIntake::fill(Hot& hot) {
  const auto batch =
      static_cast<size_t>(std::max<int64_t>(8, kFillBytes / parts_.manifest->page_bytes()));
  std::vector<PageName> names;
  for (size_t i = hot.done; i < hot.pages.size() && names.size() < batch; ++i) {
    names.push_back(hot.pages[i]);
  }
  hot.done += names.size();
  MR_ASSIGN_OR_RETURN(const bool room, parts_.pool->fill(names, deadline_));
  return room;
}

Result<void> PageIntake::fill_rest() {
  for (auto& rest : rest_) {
    while (rest.done < rest.pages.size()) {
      if (stopping()) return {};
      MR_ASSIGN_OR_RETURN(const bool room, fill(rest));
      if (!room) return {};
    }
  }
  return {};
}

}  // namespace millrace::decode
