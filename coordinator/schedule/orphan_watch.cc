// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/orphan_watch.h"

namespace millrace::coordinator {

void OrphanWatch::expire() {
  attended_.advance(clock_.now());
  for (auto at = since_.begin(); at != since_.end();) {
    if (attended_.passed() - at->second < patience_) {
      ++at;
      continue;
    }
    fail_waiting(at->first);
    at = since_.erase(at);
  }
}

void OrphanWatch::fail_waiting(const std::string& model) {
  const auto waiting = requests_.queue().waiting();  // a copy: those that fail leave the queue
  for (const auto& request : waiting) {
    if (request->model != model) continue;
    requests_.fail(request, error(Errc::kUnavailable,
                                  "no worker group for model '{}' returned within {:.0f} s", model,
                                  seconds(patience_)));
  }
}

}  // namespace millrace::coordinator
