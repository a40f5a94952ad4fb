// SPDX-License-Identifier: Apache-2.0
#include "model/generator.h"

#include <algorithm>
#include <cmath>

#include "model/checkpoint/element_conversion.h"
#include "model/merge_parts.h"
#include "model/vocabulary.h"

namespace millrace::model {

namespace {

// The slab without its first `count` tokens, or all of it where `count` is negative.
kernels::KvSlab from_token(kernels::KvSlab slab, int64_t count) {
  count = std::clamp<int64_t>(count, 0, slab.num_tokens);
  const int64_t bytes = count * slab.head_dim * dtype_bytes(slab.dtype);
  slab.k = static_cast<const std::byte*>(slab.k) + bytes;
  slab.v = static_cast<const std::byte*>(slab.v) + bytes;
  slab.num_tokens -= count;
  return slab;
}

bool ends_text(std::span<const int32_t> token_ids, const ModelConfig& config, bool ignore_eos) {
  return !ignore_eos && config.eos_token_ids.contains(token_ids.back());
}

}  // namespace

std::string_view finish_reason(std::span<const int32_t> token_ids, const ModelConfig& config,
                               bool ignore_eos) {
  return ends_text(token_ids, config, ignore_eos) ? "stop" : "length";
}

Result<Generator> Generator::create(kernels::Device& device, const ModelWeights& weights,
                                    comm::Communicator& tp, comm::Communicator& cp,
                                    int32_t max_new_tokens) {
  MR_ASSIGN_OR_RETURN(auto forward, LayerForward::create(device, weights, 1));
  Generator g(device, weights, tp, cp, std::move(forward));
  g.max_new_tokens_ = max_new_tokens;
  const auto& config = weights.config;
  const int64_t q_elements = int64_t{weights.shard.num_query_heads} * config.head_dim;
  const int64_t tail_bytes = int64_t{config.num_layers} * weights.shard.num_kv_heads *
                             max_new_tokens * config.head_dim * 4;
  MR_ASSIGN_OR_RETURN(g.hidden_, device.allocate(config.hidden_size * 4));
  MR_ASSIGN_OR_RETURN(g.partial_, device.allocate(config.hidden_size * 4));
  MR_ASSIGN_OR_RETURN(g.q_, device.allocate(q_elements * 4));
  MR_ASSIGN_OR_RETURN(g.attended_, device.allocate(q_elements * 4));
  MR_ASSIGN_OR_RETURN(g.tail_k_, device.allocate(tail_bytes));
  MR_ASSIGN_OR_RETURN(g.tail_v_, device.allocate(tail_bytes));
  MR_ASSIGN_OR_RETURN(g.own_parts_,
                      device.allocate(2 * (q_elements + weights.shard.num_query_heads) * 4));
  MR_ASSIGN_OR_RETURN(g.logits_, device.allocate(weights.lm_head.rows * 4));
  MR_ASSIGN_OR_RETURN(g.token_, device.allocate(int64_t{sizeof(int32_t)}));
  MR_ASSIGN_OR_RETURN(g.position_, device.allocate(int64_t{sizeof(int32_t)}));
  if (tp.size() > 1) {
    MR_ASSIGN_OR_RETURN(g.partial_window_, kernels::HostWindow::create(device, g.partial_.bytes()));
  }
  g.merged_.resize(static_cast<size_t>(q_elements));
  g.rounded_.resize(static_cast<size_t>(q_elements * dtype_bytes(weights.compute_dtype)));
  return g;
}

Result<std::vector<int32_t>> Generator::generate(const GenerateRequest& request,
                                                 const std::function<Deadline()>& next_deadline) {
  MR_CHECK(request.max_tokens - 1 <= max_new_tokens_, "{} tokens asked, room for {}",
           request.max_tokens, max_new_tokens_ + 1);
  MR_CHECK(request.attention == nullptr || cp_->size() == 1, "the prompt's tokens on {} ranks",
           cp_->size());
  std::vector<int32_t> tokens = {request.first_token};
  while (static_cast<int32_t>(tokens.size()) < request.max_tokens &&
         !ends_text(tokens, weights_->config, request.ignore_eos)) {
    const Deadline deadline = next_deadline();
    if (deadline.passed()) {
      return error(Errc::kDeadlineExceeded, "generation stopped after {} of {} tokens",
                   tokens.size(), request.max_tokens);
    }
    const auto num_new = static_cast<int32_t>(tokens.size()) - 1;
    const int32_t last = num_new > 0 && num_new <= std::ssize(request.follow)
                             ? request.follow[static_cast<size_t>(num_new - 1)]
                             : tokens.back();
    MR_ASSIGN_OR_RETURN(const int32_t next, step(request, last, num_new, deadline));
    tokens.push_back(next);
    if (request.on_token) request.on_token();
  }
  return tokens;
}

int64_t Generator::tail_offset(int32_t layer) const {
  return int64_t{layer} * weights_->shard.num_kv_heads * max_new_tokens_ *
         weights_->config.head_dim;
}

kernels::KvSlab Generator::tail(int32_t layer, int32_t num_new) const {
  return {.k = tail_k_.as<float>() + tail_offset(layer),
          .v = tail_v_.as<float>() + tail_offset(layer),
          .dtype = DType::kFloat32,
          .num_kv_heads = weights_->shard.num_kv_heads,
          .head_dim = weights_->config.head_dim,
          .num_tokens = num_new,
          .token_stride = max_new_tokens_};
}

Result<void> Generator::attend(const GenerateRequest& request, int32_t layer, int32_t num_new,
                               Deadline deadline) {
  const int32_t heads = weights_->shard.num_query_heads;
  const int32_t head_dim = weights_->config.head_dim;
  const int64_t part_size = int64_t{heads} * (head_dim + 1);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  // The new tokens are on every rank; only one rank counts them.
  const int64_t own_parts = 2;
  const auto part = [&](const kernels::KvSlab& slab, float* out) {
    device_->decode_attention({.q = q_.as<float>(),
                               .num_query_heads = heads,
                               .scale = scale,
                               .kv = slab,
                               .out = out,
                               .lse = out + int64_t{heads} * head_dim});
  };
  // In a layer with a window, the token sees no tokens before this one.
  const int32_t window = weights_->config.window(layer);
  const int64_t first_seen =
      window == 0 ? 0 : std::max<int64_t>(request.num_prompt_tokens + num_new - int64_t{window}, 0);
  float* const of_prompt = own_parts_.as<float>();
  float* const of_tail = of_prompt + part_size;
  part(from_token(tail(layer, cp_->rank() == 0 ? num_new : 0),
                  first_seen - request.num_prompt_tokens),
       of_tail);
  if (request.attention != nullptr) {
    MR_RETURN_IF_ERROR(request.attention->attend({.layer = layer,
                                                  .first_token = first_seen,
                                                  .q = q_.as<float>(),
                                                  .tail_lse = of_tail + int64_t{heads} * head_dim,
                                                  .out = of_prompt,
                                                  .lse = of_prompt + int64_t{heads} * head_dim,
                                                  .tail_out = of_tail,
                                                  .merged = attended_.data()},
                                                 deadline));
    if (request.attention->merges()) return {};
  } else if (!request.heads.empty()) {
    const auto kv_heads = static_cast<size_t>(weights_->shard.num_kv_heads);
    attend_heads(request.heads.subspan(static_cast<size_t>(layer) * kv_heads, kv_heads), first_seen,
                 of_prompt, of_prompt + int64_t{heads} * head_dim);
  } else {
    const auto& positions = request.prompt_positions;
    const int64_t first_row =
        positions.empty() ? first_seen
                          : std::ranges::lower_bound(positions, first_seen) - positions.begin();
    part(from_token(request.prompt[static_cast<size_t>(layer)], first_row), of_prompt);
  }
  std::vector<float> own(static_cast<size_t>(own_parts * part_size));
  device_->copy(own.data(), own_parts_.data(), own_parts_.bytes());
  MR_RETURN_IF_ERROR(device_->synchronize(deadline));

  const std::vector<int64_t> counts(static_cast<size_t>(cp_->size()), own_parts_.bytes());
  parts_.resize(own.size() * counts.size());
  MR_RETURN_IF_ERROR(cp_->all_gather(std::as_bytes(std::span(own)),
                                     std::as_writable_bytes(std::span(parts_)), counts, deadline));
  merge_parts(parts_, own_parts * cp_->size(), heads, head_dim,
              weights_->layers[static_cast<size_t>(layer)].host_sinks, merged_.data());
  convert_elements(std::as_bytes(std::span(merged_)).data(), DType::kFloat32, std::ssize(merged_),
                   rounded_.data(), weights_->compute_dtype);
  device_->copy(attended_.data(), rounded_.data(), std::ssize(rounded_));
  return {};
}

void Generator::attend_heads(std::span<const PromptHead> heads, int64_t first_seen, float* out,
                             float* lse) {
  const int32_t head_dim = weights_->config.head_dim;
  const auto group =
      static_cast<int32_t>(weights_->shard.num_query_heads / weights_->shard.num_kv_heads);
  int64_t query_head = 0;
  for (const PromptHead& head : heads) {
    const auto first = std::ranges::lower_bound(head.positions, first_seen);
    device_->decode_attention({.q = q_.as<float>() + query_head * head_dim,
                               .num_query_heads = group,
                               .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                               .kv = from_token(head.kv, first - head.positions.begin()),
                               .out = out + query_head * head_dim,
                               .lse = lse + query_head});
    query_head += group;
  }
}

Result<void> Generator::sum_over_tp(float* data, int64_t count, Deadline deadline) {
  if (tp_->size() == 1) return {};
  const int64_t bytes = count * int64_t{sizeof(float)};
  MR_ASSIGN_OR_RETURN(const auto view, partial_window_->read(data, bytes, deadline));
  MR_RETURN_IF_ERROR(tp_->all_reduce_sum(
      std::span(reinterpret_cast<float*>(view.data()), static_cast<size_t>(count)), deadline));
  partial_window_->write(data, bytes);
  return {};
}

Result<int32_t> Generator::step(const GenerateRequest& request, int32_t token, int32_t num_new,
                                Deadline deadline) {
  host_token_ = token;
  host_position_ = static_cast<int32_t>(request.num_prompt_tokens + num_new);
  device_->copy(token_.data(), &host_token_, token_.bytes());
  device_->copy(position_.data(), &host_position_, position_.bytes());
  device_->embed({.token_ids = token_.as<int32_t>(),
                  .num_rows = 1,
                  .table = weights_->embedding,
                  .scale = weights_->embedding_scale,
                  .hidden = hidden_.as<float>()});
  const auto sum = [&](float* data, int64_t count) { return sum_over_tp(data, count, deadline); };
  const auto sum_partial = [&] { return sum(partial_.as<float>(), weights_->config.hidden_size); };
  for (int32_t layer = 0; layer < weights_->config.num_layers; ++layer) {
    if (request.attention != nullptr) {
      request.attention->begin_layer(layer, hidden_.as<float>(), host_position_);
    }
    if (request.mlp != nullptr) request.mlp->begin_layer(layer, hidden_.as<float>());
    const int64_t new_row = tail_offset(layer) + int64_t{num_new} * weights_->config.head_dim;
    MR_RETURN_IF_ERROR(forward_.qkv(layer, hidden_.as<float>(), 1, position_.as<int32_t>(),
                                    request.num_prompt_tokens,
                                    {.dtype = DType::kFloat32,
                                     .q = q_.data(),
                                     .k = tail_k_.as<float>() + new_row,
                                     .v = tail_v_.as<float>() + new_row,
                                     .kv_stride = max_new_tokens_},
                                    sum));
    MR_RETURN_IF_ERROR(attend(request, layer, num_new + 1, deadline));
    forward_.attention_output(layer, attended_.data(), 1, partial_.as<float>(), false);
    MR_RETURN_IF_ERROR(sum_partial());
    forward_.add_attention(layer, partial_.as<float>(), 1, hidden_.as<float>());
    if (request.mlp == nullptr ||
        !request.mlp->run(layer, hidden_.as<float>(), partial_.as<float>())) {
      forward_.mlp(layer, hidden_.as<float>(), 1, partial_.as<float>(), false);
    }
    MR_RETURN_IF_ERROR(sum_partial());
    forward_.add_mlp(layer, partial_.as<float>(), 1, hidden_.as<float>());
  }
  std::vector<float> slice(static_cast<size_t>(weights_->lm_head.rows));
  forward_.logits(hidden_.as<float>(), 1, logits_.as<float>());
  device_->copy(slice.data(), logits_.data(), logits_.bytes());
  MR_RETURN_IF_ERROR(device_->synchronize(deadline));
  MR_ASSIGN_OR_RETURN(const auto row, gather_logits(slice, 1, *weights_, *tp_, deadline));
  MR_RETURN_IF_ERROR(check_logits(row, host_position_));
  if (request.on_logits) request.on_logits(row);
  return top_tokens(row, 1).front().token_id;
}

}  // namespace millrace::model
