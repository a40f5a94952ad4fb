// SPDX-License-Identifier: Apache-2.0
// A layer with three heads, each of which has a known best pattern by construction, and a trial of
// it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "calibrate/layer_trial.h"
#include "comm/local/local_group.h"
#include "engine/ranks/staged_communicator.h"
#include "kernels/cpu/cpu_device.h"

namespace millrace::calibrate {

inline constexpr int64_t kTokens = 2048;
inline constexpr int64_t kPages = kTokens / kernels::kPageTokens;
inline constexpr int32_t kHeads = 3;
inline constexpr int32_t kHeadDim = 32;
inline constexpr AttentionShape kShape{
    .num_query_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kHeadDim};
inline constexpr float kScale = 1;

enum PlantedHead : int32_t {
  kLocal,      // mass falls off with distance: a window is all it needs
  kColumns,    // all rows look at the same 64 keys, two in each page
  kClustered,  // rows of a tile look at two pages, those of the next tile at two others
};

struct PlantedLayer {
  std::vector<float> q, k, v;  // [tokens, heads, head_dim]; [heads, tokens, head_dim]
};
PlantedLayer planted_layer();

// A trial of a layer in a device's memory.
class TrialOfLayer {
 public:
  // `sinks`: one per head; empty if there are none.
  TrialOfLayer(kernels::Device& device, const PlantedLayer& layer,
               std::span<const plan::HeadPattern> widest, const std::vector<float>& sinks = {});

  LayerTrial& operator*() { return *trial_; }
  LayerTrial* operator->() { return trial_.get(); }

 private:
  kernels::DeviceBuffer on_device(const std::vector<float>& values);

  kernels::Device& device_;
  std::unique_ptr<comm::Communicator> world_;
  engine::StagedCommunicator alone_;
  kernels::DeviceBuffer q_, k_, v_, sinks_;
  std::unique_ptr<LayerTrial> trial_;
};

}  // namespace millrace::calibrate
