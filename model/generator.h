// SPDX-License-Identifier: Apache-2.0
// Greedy generation from a KV cache that ranks hold in parts: kv heads split over `tp`, tokens
// split over `cp` in any way. Each rank attends to what it holds; the parts merge by their
// log-sum-exp, which is exact (flash-decoding). Used by millrace-batch on the prefill ranks' own
// shards and by decode/ on pulled ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/api/host_window.h"
#include "model/layer_forward.h"
#include "model/token_mlp.h"
#include "model/weights.h"

namespace millrace::model {

// The prompt's tokens, wherever they are kept. Called by the thread that generates, layer by layer.
class PromptAttention {
 public:
  struct Step {
    int32_t layer = 0;
    int64_t first_token = 0;          // first prompt token that the layer's window reaches
    const float* q = nullptr;         // [query heads, head_dim], device memory, as all here
    const float* tail_lse = nullptr;  // [query heads] log-sum-exp over the tokens generated so far
    float* out = nullptr;             // [query heads, head_dim] over the prompt's tokens
    float* lse = nullptr;             // [query heads]
    // Only if merges():
    const float* tail_out = nullptr;  // [query heads, head_dim] over the tokens generated so far
    void* merged = nullptr;           // [query heads, head_dim] over both, in the compute dtype
  };
  virtual ~PromptAttention() = default;
  // Called before a layer is computed, with the layer's input [hidden_size] and the position of its
  // token.
  virtual void begin_layer(int32_t layer, const float* hidden, int32_t position) = 0;
  virtual Result<void> attend(const Step& step, Deadline deadline) = 0;
  // Whether attend() fills `merged`, but neither `out` nor `lse`. The host then does not wait for
  // the device.
  virtual bool merges() const { return false; }
};

// What a rank holds of one kv head of a layer, where heads hold different tokens. Attention ignores
// all other tokens.
struct PromptHead {
  kernels::KvSlab kv;                  // of one kv head
  std::span<const int32_t> positions;  // of its tokens, ascending
};

struct GenerateRequest {
  std::span<const kernels::KvSlab>
      prompt;  // [num_layers], the tokens this rank holds, by position; or
  // Positions of these tokens, ascending; empty: from 0 on.
  std::span<const int32_t> prompt_positions = {};
  std::span<const PromptHead> heads =
      {};                                // [num_layers, kv heads of this rank], instead of `prompt`
  PromptAttention* attention = nullptr;  // for all heads, where cp is one rank
  TokenMlp* mlp = nullptr;               // for each token; null: dense
  int64_t num_prompt_tokens = 0;         // of the whole prompt
  int32_t first_token = 0;               // known from prefill
  int32_t max_tokens = 1;                // generated tokens in total, the first included
  bool ignore_eos = false;               // continues after a token that ends a text
  // Continues with these tokens, the first of which follows first_token, whatever the generator
  // chooses itself. The result then has its choices after the same tokens as somebody else's. As
  // many tokens as are asked for.
  std::span<const int32_t> follow = {};
  std::function<void()> on_token = {};  // called after each token but the first
  // Called before on_token, with the logits [vocab_size] that the token was chosen from.
  std::function<void(std::span<const float>)> on_logits = {};
};

// Why there are no more tokens, in vLLM's terms: "stop" after a token that ends a text, else
// "length".
std::string_view finish_reason(std::span<const int32_t> token_ids, const ModelConfig& config,
                               bool ignore_eos);

class Generator {
 public:
  // Allocates room for `max_new_tokens` behind the prompt. All arguments outlive the generator.
  static Result<Generator> create(kernels::Device& device, const ModelWeights& weights,
                                  comm::Communicator& tp, comm::Communicator& cp,
                                  int32_t max_new_tokens);

  // The first token and those after it, up to and including one that ends the text, or as many as
  // asked for. Collective over tp and cp: all ranks pass equal requests except for the slabs.
  // `next_deadline` is called before each token and returns the deadline of that token.
  Result<std::vector<int32_t>> generate(const GenerateRequest& request,
                                        const std::function<Deadline()>& next_deadline);

 private:
  Generator(kernels::Device& device, const ModelWeights& weights, comm::Communicator& tp,
            comm::Communicator& cp, LayerForward forward)
      : device_(&device), weights_(&weights), tp_(&tp), cp_(&cp), forward_(std::move(forward)) {}

  Result<int32_t> step(const GenerateRequest& request, int32_t token, int32_t num_new,
                       Deadline deadline);
  Result<void> attend(const GenerateRequest& request, int32_t layer, int32_t num_new,
                      Deadline deadline);
  void attend_heads(std::span<const PromptHead> heads, int64_t first_seen, float* out, float* lse);
  // Sums device memory, at most as much as `partial_`.
  Result<void> sum_over_tp(float* data, int64_t count, Deadline deadline);
  int64_t tail_offset(int32_t layer) const;  // elements
  kernels::KvSlab tail(int32_t layer, int32_t num_new) const;

  kernels::Device* device_;
  const ModelWeights* weights_;
  comm::Communicator* tp_;
  comm::Communicator* cp_;
  LayerForward forward_;
  int32_t max_new_tokens_ = 0;
  kernels::DeviceBuffer hidden_;    // [hidden] float32
  kernels::DeviceBuffer partial_;   // [hidden] float32: this rank's part of a row-parallel product
  kernels::DeviceBuffer q_;         // [query heads, head_dim] float32
  kernels::DeviceBuffer attended_;  // [query heads, head_dim] compute dtype
  kernels::DeviceBuffer tail_k_;    // [layers, kv heads, max_new_tokens, head_dim] float32
  kernels::DeviceBuffer tail_v_;
  kernels::DeviceBuffer own_parts_;  // (out, lse) of the prompt's part, then of the new tokens'
  kernels::DeviceBuffer logits_;     // [vocabulary of this rank] float32
  kernels::DeviceBuffer token_, position_;  // int32 each
  std::optional<kernels::HostWindow> partial_window_;
  std::vector<float> parts_;  // gathered parts of all ranks
  // Sources of copies to the device; unchanged until the copy is done.
  int32_t host_token_ = 0;
  int32_t host_position_ = 0;
  std::vector<float> merged_;
  std::vector<std::byte> rounded_;  // merged_ in the compute dtype
};

}  // namespace millrace::model
