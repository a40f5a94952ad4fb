// SPDX-License-Identifier: Apache-2.0
// Predicts which pages the next layer will read, while this one is computed, and brings them into
// the pool. It applies layer l + 1's own norm, query projection and rotation to layer l's input.
// Consecutive inputs differ little (Deja Vu, ICML 2023, section 4.3), and nothing is trained. It
// takes as many pages as the layer read for the last token, in the order that their digests give.
//
// It has a thread and a device of its own: the generating thread only leaves a copy of the input. A
// wrong prediction costs a fetch, never a token; a late one is dropped.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/result.h"
#include "decode/attention/cpu_page_kernel.h"
#include "decode/attention/progressive_attention.h"
#include "kernels/api/device.h"
#include "model/layer_forward.h"
#include "model/weights.h"

namespace millrace::decode {

struct LookaheadStats {
  int64_t made = 0;     // predictions of a layer
  int64_t dropped = 0;  // the layer had begun by then, or there was no time to predict
  // For layers with a prediction made in time: pages read, and how many of them were predicted.
  int64_t pages_read = 0, pages_foreseen = 0;
};

class LayerLookahead {
 public:
  // All parts outlive it. The digests of all layers must be there. `weights` are in host memory.
  struct Parts {
    const model::ModelWeights* weights = nullptr;
    const PageDigests* digests = nullptr;
    const kernels::PageRule* rule = nullptr;
    const ProgressiveAttention* attention = nullptr;
    PagePool* pool = nullptr;
  };
  static Result<std::unique_ptr<LayerLookahead>> start(const Parts& parts, const CacheShape& shape,
                                                       Deadline deadline);
  // Waits for a fetch under way.
  ~LayerLookahead();

  // This layer begins with this input [hidden_size]. Returns at once.
  void begin_layer(int32_t layer, const float* hidden, int32_t position);
  // Compares the prediction with what the layer has read of a kv head of this rank.
  void compare(int32_t layer, int32_t kv_head, std::span<const int32_t> pages);
  LookaheadStats stats() const;

 private:
  struct Task {
    int32_t layer = 0;  // whose input `hidden` is
    int32_t position = 0;
    std::vector<float> hidden;
  };
  LayerLookahead(const Parts& parts, const CacheShape& shape, Deadline deadline,
                 std::unique_ptr<kernels::Device> device, model::LayerForward forward);
  Result<void> allocate();
  void run();
  std::vector<kvclient::PageName> names_of(int32_t layer,
                                           const std::vector<std::vector<int32_t>>& pages) const;
  // For layer task.layer + 1, by kv head.
  std::vector<std::vector<int32_t>> predict(const Task& task);

  const Parts parts_;
  const CacheShape shape_;
  const Deadline deadline_;
  const std::unique_ptr<kernels::Device> device_;
  model::LayerForward forward_;
  CpuPageKernel kernel_{1};
  kernels::DeviceBuffer q_, kv_, position_;
  std::vector<PageRanking> rankings_;

  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::optional<Task> task_;
  int32_t layer_ = -1;                       // being computed
  std::vector<std::vector<bool>> foreseen_;  // of layer foreseen_layer_, by kv head and page
  int32_t foreseen_layer_ = -1;
  bool stopping_ = false;
  LookaheadStats stats_;
  std::thread thread_;
};

}  // namespace millrace::decode
