// SPDX-License-Identifier: Apache-2.0
// How far a prompt is: which layers are computed, and which of them were reported to the
// coordinator. Each layer is reported once, in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/prompt/coordinator_reporter.h"

namespace millrace::worker {

class LayerProgress {
 public:
  // `reporter` outlives it.
  LayerProgress(CoordinatorReporter& reporter, std::string request_id, int32_t num_layers)
      : reporter_(reporter), request_id_(std::move(request_id)), num_layers_(num_layers) {}

  // The next layer is computed.
  void computed(double density) { density_.push_back(density); }
  // The layers so far are computed again, but not reported again.
  void restart() { density_.clear(); }
  int32_t num_computed() const { return static_cast<int32_t>(density_.size()); }
  // Reports the computed layers before `end_layer` that were not reported yet.
  void report_until(int32_t end_layer);

 private:
  CoordinatorReporter& reporter_;
  const std::string request_id_;
  const int32_t num_layers_;
  std::vector<double> density_;  // of each layer computed
  int32_t num_reported_ = 0;
};

}  // namespace millrace::worker
