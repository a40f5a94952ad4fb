// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "common/cli/text_bar.h"

namespace millrace::worker {

void ProgressBar::start(int64_t total) {
  total_ = std::max<int64_t>(total, 1);
  watch_ = Stopwatch();
  update(0, "");
}

void ProgressBar::update(int64_t done, const std::string& note) {
  if (!visible_) return;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  const double elapsed_s = watch_.elapsed_s();
  const double left_s = share > 0 ? elapsed_s / share - elapsed_s : 0;
  std::cerr << fmt::format("\r{} {:3.0f} %  {:.0f} s, {:.0f} s left  {}\x1b[K",
                           text_bar(done, total_), share * 100, elapsed_s, left_s, note)
            << std::flush;
}

void ProgressBar::finish() {
  if (visible_) std::cerr << "\n";
}

}  // namespace millrace::worker
