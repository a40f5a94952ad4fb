// The pages of a reply that is still coming: each is taken as soon as the transport tells that it is
// there, while a processor's cache has it, instead of all of them after the last.
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
  // Whether the page, by its index in the run, is what its rank wrote: then it needs no other look.
  using Take = std::function<bool(int64_t index, const PulledPage& page)>;

  // Of the replies from here to end(); `run` outlives them.
  void begin(const PageRun& run, int64_t page_bytes, Take take);
  void end() { run_ = nullptr; }
  // The same pages will come once more, from the first on. After end(): nothing.
  void restart();
  void landed(const comm::ReplyHead& reply, int64_t num_bytes) override;

  // Of the last reply; false for pages that nobody told of.
  bool taken(int64_t index) const {
    return index < static_cast<int64_t>(taken_.size()) && taken_[static_cast<size_t>(index)];
  }

 private:
  const PageRun* run_ = nullptr;
  int64_t page_bytes_ = 0;
  Take take_;
  std::vector<PulledPage> pages_;  // empty until the reply's header was read
  std::vector<bool> taken_;        // of those that have landed
};

}  // namespace millrace::kvclient
