// A prompt whose pages lie beside a device (kernels/pages/device_pages.h), as a generator on that device
// sees it: no host waits within a token.
#pragma once

#include <optional>

#include "decode/predict/next_queries.h"
#include "kernels/pages/device_pages.h"
#include "model/generator.h"

namespace millrace::decode {

class DevicePrompt final : public model::PromptAttention {
 public:
  // All outlive it. `ahead`: the device that `pages` was given to foresee on; null: nothing is foreseen.
  static Result<DevicePrompt> create(kernels::DevicePages& pages, kernels::Device* ahead,
                                     const model::ModelWeights& weights, int64_t num_tokens);

  void begin_layer(int32_t layer, const float* hidden, int32_t position) override;
  Result<void> attend(const Step& step, Deadline deadline) override;
  bool merges() const override { return true; }

 private:
  DevicePrompt(kernels::DevicePages& pages, int32_t num_layers, int64_t num_tokens)
      : pages_(&pages), num_layers_(num_layers), num_tokens_(num_tokens) {}

  kernels::DevicePages* pages_;
  int32_t num_layers_;
  int64_t num_tokens_;
  std::optional<NextQueries> queries_;
};

// What a rank's pages are for the kernels.
kernels::DevicePagesShape device_pages_shape(const model::ModelWeights& weights,
                                             int64_t num_tokens);

}  // namespace millrace::decode
