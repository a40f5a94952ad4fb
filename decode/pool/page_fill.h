// SPDX-License-Identifier: Apache-2.0
// Brings a cache's pages into HostPages in the background, after anything that is asked for, from
// the layers that are ready: first the hot pages of all of these, then the rest. It makes several
// pulls at a time, so that the next is already under way when one ends.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "decode/pool/host_pages.h"

namespace millrace::decode {

class PageFill {
 public:
  // `pages` outlives it.
  PageFill(HostPages& pages, int32_t num_layers, Deadline deadline)
      : pages_(pages),
        num_layers_(num_layers),
        deadline_(deadline),
        layer_left_(static_cast<size_t>(num_layers)) {}
  // Ends after the pulls under way.
  ~PageFill();

  // Call once. Pulls of pages share the links with whatever else is pulled.
  void start();
  // The kept pages of the next layer; before or after start().
  void add_layer(std::vector<kvclient::PageName> hot, std::vector<kvclient::PageName> rest);

  // The number of layers, from the first on, whose pages have all come.
  int32_t layers_here() const;
  // Wait until the hot pages of all layers, or all pages of `num_layers` layers, have come. An
  // error is that of the first pull that failed.
  Result<void> wait_for_hot(Deadline deadline);
  Result<void> wait_for_layers(int32_t num_layers, Deadline deadline);

 private:
  struct Run {
    std::vector<kvclient::PageName> names;
    size_t begun = 0;  // pulled or on their way
  };
  struct Batch {
    std::vector<kvclient::PageName> names;  // empty: all is done
    bool hot = false;
  };
  void run();
  Batch next();
  Result<void> wait(const std::function<bool()>& is_there, Deadline deadline);
  int32_t count_layers_here() const;

  HostPages& pages_;
  const int32_t num_layers_;
  const Deadline deadline_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Run> hot_, rest_;  // runs with pages not begun
  int32_t num_added_ = 0;       // layers
  int64_t hot_left_ = 0;
  std::vector<int64_t> layer_left_;  // pages missing, of the layers added
  bool stopping_ = false;
  std::optional<Error> failure_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::decode
