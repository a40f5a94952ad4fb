// SPDX-License-Identifier: Apache-2.0
// A prompt whose pages lie in host memory for a device (kernels/pages/device_pages.h), as a
// generator on that device sees it. Once all pages are there, the host does not wait within a
// token. Until then the host gets the order of each layer's pages, brings the first of them, and
// more if those were not enough.
#pragma once

#include <optional>

#include "decode/next_queries.h"
#include "decode/pool/host_pages.h"
#include "kernels/pages/device_pages.h"
#include "model/generator.h"

namespace millrace::decode {

class DevicePrompt final : public model::PromptAttention {
 public:
  // All arguments outlive it. `ahead`: the device on which `pages` was told to predict; null: no
  // predictions. `host`: where pages still arrive; null: all are there, and DevicePages::complete()
  // was called.
  static Result<DevicePrompt> create(kernels::DevicePages& pages, kernels::Device* ahead,
                                     const model::ModelWeights& weights, int64_t num_tokens,
                                     HostPages* host = nullptr);

  void begin_layer(int32_t layer, const float* hidden, int32_t position) override;
  Result<void> attend(const Step& step, Deadline deadline) override;
  bool merges() const override { return true; }

 private:
  DevicePrompt(kernels::DevicePages& pages, HostPages* host, const model::ModelWeights& weights,
               int64_t num_tokens)
      : pages_(&pages), host_(host), weights_(&weights), num_tokens_(num_tokens) {}
  Result<void> attend_to_what_comes(kernels::DevicePages::Step step, Deadline deadline);

  kernels::DevicePages* pages_;
  HostPages* host_;  // null: all pages are there
  const model::ModelWeights* weights_;
  int64_t num_tokens_;
  std::optional<NextQueries> queries_;
};

// The shape of a rank's pages for the kernels.
kernels::DevicePagesShape device_pages_shape(const model::ModelWeights& weights,
                                             int64_t num_tokens);

}  // namespace millrace::decode
