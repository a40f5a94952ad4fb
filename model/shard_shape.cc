// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/units.h"
#include "model/weights.h"

namespace millrace::model {

namespace {

bool divides_heads(const ModelConfig& config, int32_t size) {
  const bool kv_fit = config.num_kv_heads % size == 0 || size % config.num_kv_heads == 0;
  return config.num_query_heads % size == 0 && kv_fit;
}

// The MLP width, as config.json has it, that `size` ranks cannot share; empty where they can.
std::string undivided_width(const ModelConfig& config, int32_t size) {
  const auto& experts = config.experts;
  const std::array<std::pair<std::string_view, int32_t>, 3> widths{
      {{"intermediate_size", config.has_dense_layers() ? config.ffn_size : 0},
       {expert_width_field(experts), experts.ffn_size},
       {"shared_expert_intermediate_size", experts.shared_ffn_size}}};
  for (const auto& [field, width] : widths) {
    if (width % size != 0) return fmt::format("{} = {}", field, width);
  }
  return {};
}

Result<void> check_size(const ModelConfig& config, TensorParallel tp) {
  if (tp.size < 1 || tp.rank < 0 || tp.rank >= tp.size) {
    return error(Errc::kInvalidArgument, "tensor-parallel rank {} of {}", tp.rank, tp.size);
  }
  const auto width = undivided_width(config, tp.size);
  if (divides_heads(config, tp.size) && width.empty()) return {};

  std::vector<int32_t> working;
  for (int32_t size = 1; size <= config.num_query_heads; ++size) {
    if (divides_heads(config, size) && undivided_width(config, size).empty()) {
      working.push_back(size);
    }
  }
  const auto field = config.num_query_heads % tp.size != 0
                         ? fmt::format("num_attention_heads = {}", config.num_query_heads)
                     : !divides_heads(config, tp.size)
                         ? fmt::format("num_key_value_heads = {}", config.num_kv_heads)
                         : width;
  return error(Errc::kUnsupported,
               "{} does not split over a tensor-parallel size of {}; sizes that work: {}", field,
               tp.size, fmt::join(working, ", "));
}

}  // namespace

Result<ShardShape> shard_shape(const ModelConfig& config, TensorParallel tp) {
  MR_RETURN_IF_ERROR(check_size(config, tp));
  ShardShape shard;
  shard.num_query_heads = config.num_query_heads / tp.size;
  shard.first_query_head = tp.rank * shard.num_query_heads;
  shard.kv_replicas = std::max(tp.size / config.num_kv_heads, 1);
  shard.kv_replica = tp.rank % shard.kv_replicas;
  shard.num_kv_heads = std::max(config.num_kv_heads / tp.size, 1);
  shard.first_kv_head = tp.rank / shard.kv_replicas * shard.num_kv_heads;
  shard.ffn_size = config.has_dense_layers() ? config.ffn_size / tp.size : 0;
  shard.expert_ffn_size = config.experts.ffn_size / tp.size;
  shard.shared_ffn_size = config.experts.shared_ffn_size / tp.size;
  const auto vocab_rows = static_cast<int32_t>(ceil_div(config.vocab_size, tp.size));
  shard.vocab_begin = std::min(tp.rank * vocab_rows, config.vocab_size);
  shard.vocab_end = std::min(shard.vocab_begin + vocab_rows, config.vocab_size);
  return shard;
}

}  // namespace millrace::model
