// SPDX-License-Identifier: Apache-2.0
#include "decode/device_prompt.h"

#include <algorithm>
#include <cmath>

#include "common/page_tokens.h"
#include "common/units.h"

namespace millrace::decode {

namespace {

// Pages of a kv head that a step asks for first while pages are still coming.
constexpr int64_t kFirstPages = 64;

}  // namespace

Result<DevicePrompt> DevicePrompt::create(kernels::DevicePages& pages, kernels::Device* ahead,
                                          const model::ModelWeights& weights, int64_t num_tokens,
                                          HostPages* host) {
  DevicePrompt prompt(pages, host, weights, num_tokens);
  if (ahead != nullptr) {
    MR_ASSIGN_OR_RETURN(prompt.queries_, NextQueries::create(*ahead, weights));
  }
  return prompt;
}

void DevicePrompt::begin_layer(int32_t layer, const float* hidden, int32_t position) {
  pages_->begin_layer(layer);
  if (!queries_ || host_ != nullptr || layer + 1 == weights_->config.num_layers) return;
  if (weights_->config.window(layer + 1) != 0) return;  // a window's pages are known
  queries_->begin_token(position, num_tokens_);
  pages_->foresee(layer + 1, queries_->of_layer(layer + 1, hidden));
}

Result<void> DevicePrompt::attend(const Step& step, Deadline deadline) {
  const auto& layer = weights_->layers[static_cast<size_t>(step.layer)];
  const kernels::DevicePages::Step on_device{.layer = step.layer,
                                             .first_token = step.first_token,
                                             .q = step.q,
                                             .tail_lse = step.tail_lse,
                                             .tail_out = step.tail_out,
                                             .sinks = layer.sinks,
                                             .out = step.merged};
  if (host_ != nullptr && host_->has_all()) {
    MR_RETURN_IF_ERROR(pages_->complete(deadline));
    host_ = nullptr;
  }
  if (host_ != nullptr) return attend_to_what_comes(on_device, deadline);
  pages_->attend(on_device);
  return {};
}

Result<void> DevicePrompt::attend_to_what_comes(kernels::DevicePages::Step step,
                                                Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const auto order, pages_->order(step, deadline));
  // For a window, all of its pages.
  step.max_pages = step.first_token > 0 ? ceil_div(num_tokens_, kPageTokens) : kFirstPages;
  for (;; step.max_pages *= 2) {
    std::vector<kvclient::PageName> names;
    for (size_t h = 0; h < order.size(); ++h) {
      const auto kv_head = weights_->shard.first_kv_head + static_cast<int32_t>(h);
      const auto count = std::min(step.max_pages, std::ssize(order[h]));
      for (const int32_t page : std::span(order[h]).first(static_cast<size_t>(count))) {
        names.push_back({step.layer, kv_head, page});
      }
    }
    MR_RETURN_IF_ERROR(host_->bring(names, FetchUrgency::kNeed, deadline));
    pages_->attend(step);
    MR_ASSIGN_OR_RETURN(const auto read, pages_->pages_read(deadline));
    if (std::equal(read.begin(), read.end(), order.begin(),
                   [](const auto& got, const auto& all) { return got.empty() == all.empty(); })) {
      return {};
    }
  }
}

kernels::DevicePagesShape device_pages_shape(const model::ModelWeights& weights,
                                             int64_t num_tokens) {
  return {.num_layers = weights.config.num_layers,
          .num_kv_heads = weights.shard.num_kv_heads,
          .num_query_heads = weights.shard.num_query_heads,
          .head_dim = weights.config.head_dim,
          .num_tokens = num_tokens,
          .dtype = weights.compute_dtype,
          .scale = 1.0F / std::sqrt(static_cast<float>(weights.config.head_dim)),
          .first_kv_head = weights.shard.first_kv_head};
}

}  // namespace millrace::decode
