// SPDX-License-Identifier: Apache-2.0
#include "worker/events/page_journal.h"

#include <utility>

#include "common/log.h"

namespace millrace::worker {

namespace {

Result<void> leave_out_others(JournalFile& file, const PageJournal::Held& held, size_t most_pages) {
  MR_ASSIGN_OR_RETURN(
      const auto left,
      file.read([&held](const PageContentKey& key) { return held.contains(block_hash(key)); },
                most_pages));
  return file.replace(left);
}

}  // namespace

PageJournal::PageJournal(JournalFile file, size_t most_pages)
    : most_pages_(most_pages), file_(std::make_shared<JournalFile>(std::move(file))) {
  writes_.emplace();
}

void PageJournal::begin_with(JournalFile::Contents contents) {
  num_pages_ = contents.pages.size();
  write([file = file_, contents = std::move(contents)] { return file->replace(contents); });
}

void PageJournal::add(JournalFile::Contents contents, const std::function<Held()>& held) {
  if (contents.pages.empty()) return;
  const size_t num_new = contents.pages.size();
  if (!write([file = file_, contents = std::move(contents)] { return file->append(contents); })) {
    return;
  }
  num_pages_ += num_new;
  if (num_pages_ <= 2 * most_pages_) return;
  const bool is_taken = write([file = file_, kept = held(), most_pages = most_pages_] {
    return leave_out_others(*file, kept, most_pages);
  });
  if (is_taken) num_pages_ = most_pages_;
}

bool PageJournal::write(BackgroundWrites::Write task) {
  if (!writes_) return false;
  if (const auto failure = writes_->take_failure()) {
    log::warn("which pages are kept is not told at the next start, only found: {}",
              failure->to_string());
    writes_.reset();
    return false;
  }
  const bool is_taken = writes_->add(std::move(task));
  if (!is_taken && !is_behind_) {
    log::warn("the disk of kept pages is slow: the next start does not tell of all of them");
  }
  is_behind_ = !is_taken;
  return is_taken;
}

}  // namespace millrace::worker
