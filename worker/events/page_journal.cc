// SPDX-License-Identifier: Apache-2.0
#include "worker/events/page_journal.h"

#include <utility>

#include "common/log.h"

namespace millrace::worker {

namespace {

Result<void> leave_out_others(JournalFile& file, const PageJournal::Held& held) {
  MR_ASSIGN_OR_RETURN(const auto pages, file.read([&held](const PageContentKey& key) {
    return held.contains(block_hash(key));
  }));
  return file.replace(pages);
}

}  // namespace

PageJournal::PageJournal(JournalFile file, size_t most_records)
    : most_records_(most_records), file_(std::make_shared<JournalFile>(std::move(file))) {
  writes_.emplace();
}

void PageJournal::begin_with(std::vector<StoredPage> pages) {
  num_records_ = pages.size();
  write([file = file_, pages = std::move(pages)] { return file->replace(pages); });
}

void PageJournal::add(std::vector<StoredPage> pages, const std::function<Held()>& held) {
  if (pages.empty()) return;
  const size_t num_new = pages.size();
  if (!write([file = file_, pages = std::move(pages)] { return file->append(pages); })) return;
  num_records_ += num_new;
  if (num_records_ <= most_records_) return;
  const bool is_taken =
      write([file = file_, kept = held()] { return leave_out_others(*file, kept); });
  if (is_taken) num_records_ = most_records_ / 2;
}

bool PageJournal::write(BackgroundWrites::Write task) {
  if (!writes_) return false;
  if (const auto failure = writes_->take_failure()) {
    log::warn("which pages are kept is not published at the next start: {}", failure->to_string());
    writes_.reset();
    return false;
  }
  const bool is_taken = writes_->add(std::move(task));
  if (!is_taken && !is_behind_) {
    log::warn("the disk of kept pages is slow: the next start does not publish all of them");
  }
  is_behind_ = !is_taken;
  return is_taken;
}

}  // namespace millrace::worker
