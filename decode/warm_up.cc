// SPDX-License-Identifier: Apache-2.0
#include "decode/warm_up.h"

#include <cstring>
#include <vector>

#include "common/page_tokens.h"
#include "decode/device_prompt.h"
#include "kernels/cuda/cuda_device_pages.h"

namespace millrace::decode {

Result<void> warm_up(kernels::Device& device, kernels::Device* ahead,
                     const model::ModelWeights& weights, model::Generator& generator,
                     Deadline deadline) {
  const auto shape = device_pages_shape(weights, kPageTokens);
  MR_ASSIGN_OR_RETURN(const auto memory,
                      device.allocate_host(shape.all_pages() * shape.page_bytes()));
  std::memset(memory.as<std::byte>(), 0, static_cast<size_t>(memory.bytes()));
  MR_ASSIGN_OR_RETURN(
      const auto pages,
      kernels::make_cuda_device_pages(
          device, ahead, shape, {.host = memory.as<std::byte>(), .num_slots = shape.kept_pages()}));
  const std::vector<float> digests(static_cast<size_t>(shape.num_pages() * 3 * shape.head_dim));
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      MR_RETURN_IF_ERROR(pages->set_digests(layer, head, digests));
    }
  }
  MR_RETURN_IF_ERROR(pages->complete(deadline));
  MR_ASSIGN_OR_RETURN(auto prompt, DevicePrompt::create(*pages, ahead, weights, kPageTokens));
  MR_ASSIGN_OR_RETURN(const auto tokens, generator.generate({.attention = &prompt,
                                                             .num_prompt_tokens = kPageTokens,
                                                             .max_tokens = 2,
                                                             .ignore_eos = true},
                                                            [deadline] { return deadline; }));
  return {};
}

}  // namespace millrace::decode
