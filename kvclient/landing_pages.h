// SPDX-License-Identifier: Apache-2.0
// The pages of a reply that is still arriving: each page is taken as soon as the transport reports
// that it is there, while it is in a processor's cache, instead of all pages after the last.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/api/transport.h"
#include "kvclient/kv_client.h"
#include "kvclient/order/page_run.h"

namespace millrace::kvclient {

class LandingPages final : public comm::PayloadObserver {
 public:
  // Returns whether the page (index in the run) is what its rank wrote; then it is not looked at
  // again.
  using Take = std::function<bool(int64_t index, const PulledPage& page)>;

  // Observes the replies from here to end(); `run` outlives them.
  void begin(const PageRun& run, int64_t page_bytes, Take take);
  void end() { run_ = nullptr; }
  // The same pages will come again, from the first one. After end() it does nothing.
  void restart();
  void landed(const comm::ReplyHead& reply, int64_t num_bytes) override;

  // For the last reply; false for pages that were never reported.
  bool taken(int64_t index) const {
    return index < static_cast<int64_t>(taken_.size()) && taken_[static_cast<size_t>(index)];
  }

 private:
  const PageRun* run_ = nullptr;
  int64_t page_bytes_ = 0;
  Take take_;
  std::vector<PulledPage> pages_;  // empty until the reply's header was read
  std::vector<bool> taken_;        // of the pages that have landed
};

}  // namespace millrace::kvclient
