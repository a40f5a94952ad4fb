// SPDX-License-Identifier: Apache-2.0
#include "kvclient/landing_pages.h"

#include <utility>

#include "kvclient/ranks/page_call.h"

namespace millrace::kvclient {

void LandingPages::begin(const PageRun& run, int64_t page_bytes, Take take) {
  run_ = &run;
  page_bytes_ = page_bytes;
  take_ = std::move(take);
  restart();
}

void LandingPages::restart() {
  if (run_ == nullptr) return;
  pages_.clear();
  taken_.clear();
}

void LandingPages::landed(const comm::ReplyHead& reply, int64_t num_bytes) {
  const auto is_there = [&] { return (std::ssize(taken_) + 1) * page_bytes_ <= num_bytes; };
  if (run_ == nullptr || !is_there()) return;
  if (pages_.empty()) {
    auto answer = read_page_reply(reply, "", *run_, run_->num_pages * page_bytes_);
    if (!answer.ok()) {
      end();  // the caller reads it too, and reports the error
      return;
    }
    pages_ = std::move(answer->pages);
  }
  while (is_there()) taken_.push_back(take_(std::ssize(taken_), pages_[taken_.size()]));
}

}  // namespace millrace::kvclient
