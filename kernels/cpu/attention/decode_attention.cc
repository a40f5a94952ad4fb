// SPDX-License-Identifier: Apache-2.0
// The query heads of one kv head are the rows of one attention tile, so that a decode step reads K
// and V once. The tokens are cut into chunks whose results merge by their lse; the cuts do not
// depend on the number of threads, so neither does the result.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/attention/attention_tile.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_tasks.h"

namespace millrace::kernels::cpu {
namespace {

// Half a megabyte of K and V at head_dim 128 in bfloat16: long enough to hide the merge, short
// enough to occupy every thread from some 10,000 tokens on.
constexpr int64_t kChunkTokens = 1024;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The contribution of each chunk of tokens to each query head.
struct Partials {
  int64_t num_chunks = 0;
  std::vector<float> out;  // [num_chunks, num_query_heads, head_dim]
  std::vector<float> lse;  // [num_chunks, num_query_heads]
};

// Query heads [first_head, first_head + num_heads), all of one kv head, over one chunk.
struct WorkItem {
  int64_t chunk = 0;
  int64_t first_head = 0;
  int64_t num_heads = 0;
};

void check_params(const DecodeAttentionParams& params) {
  const KvSlab& kv = params.kv;
  MR_CHECK(kv.head_dim > 0 && kv.head_dim <= kMaxHeadDim && kv.head_dim % kHeadDimStep == 0,
           "decode attention: head_dim {} is not a multiple of {} up to {}", kv.head_dim,
           kHeadDimStep, kMaxHeadDim);
  MR_CHECK(kv.num_kv_heads > 0 && params.num_query_heads % kv.num_kv_heads == 0,
           "decode attention: {} query heads over {} kv heads", params.num_query_heads,
           kv.num_kv_heads);
  MR_CHECK(kv.num_tokens >= 0 && kv.num_tokens <= kv.token_stride,
           "decode attention: {} tokens at stride {}", kv.num_tokens, kv.token_stride);
  MR_CHECK(params.scale > 0, "decode attention: scale {}", params.scale);
}

std::vector<WorkItem> plan(const DecodeAttentionParams& params, int64_t num_chunks) {
  const int64_t group = params.num_query_heads / params.kv.num_kv_heads;
  std::vector<WorkItem> items;
  for (int64_t kv_head = 0; kv_head < params.kv.num_kv_heads; ++kv_head) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      for (int64_t h = 0; h < group; h += kTileRows) {
        items.push_back({.chunk = chunk,
                         .first_head = kv_head * group + h,
                         .num_heads = std::min(kTileRows, group - h)});
      }
    }
  }
  return items;
}

void attend_chunk(const DecodeAttentionParams& params, const WorkItem& item,
                  AttentionTileKernel* kernel, AttentionScratch& scratch, Partials& partials) {
  const KvSlab& kv = params.kv;
  const int64_t group = params.num_query_heads / kv.num_kv_heads;
  const int64_t kv_bytes =
      item.first_head / group * kv.token_stride * kv.head_dim * dtype_bytes(kv.dtype);
  const int64_t begin = item.chunk * kChunkTokens;
  const KeyRange keys = {.begin = begin, .end = std::min(begin + kChunkTokens, kv.num_tokens)};
  const int64_t result = item.chunk * params.num_query_heads + item.first_head;
  kernel({.q = params.q + item.first_head * kv.head_dim,
          .q_dtype = DType::kFloat32,
          .row_stride = kv.head_dim,
          .num_rows = item.num_heads,
          .position = kv.num_tokens,  // past every key: nothing is hidden
          .scale = params.scale,
          .k = static_cast<const char*>(kv.k) + kv_bytes,
          .v = static_cast<const char*>(kv.v) + kv_bytes,
          .kv_dtype = kv.dtype,
          .head_dim = kv.head_dim,
          .ranges = &keys,
          .num_ranges = 1,
          .out = partials.out.data() + result * kv.head_dim,
          .lse = partials.lse.data() + result},
         scratch);
}

// out = sum over chunks of exp(lse_chunk - lse) out_chunk
void merge(const DecodeAttentionParams& params, const Partials& partials, int64_t head) {
  const int64_t head_dim = params.kv.head_dim;
  const auto lse_of = [&](int64_t chunk) {
    return partials.lse[static_cast<size_t>(chunk * params.num_query_heads + head)];
  };
  float maximum = kNothing;
  for (int64_t c = 0; c < partials.num_chunks; ++c) maximum = std::max(maximum, lse_of(c));
  float* out = params.out + head * head_dim;
  std::fill_n(out, head_dim, 0.0F);
  float sum = 0;
  for (int64_t c = 0; c < partials.num_chunks; ++c) {
    const float weight = std::exp(lse_of(c) - maximum);
    const float* part = partials.out.data() + (c * params.num_query_heads + head) * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) out[d] += weight * part[d];
    sum += weight;
  }
  params.lse[head] = partials.num_chunks == 0 ? kNothing : maximum + std::log(sum);
  if (partials.num_chunks == 0) return;
  for (int64_t d = 0; d < head_dim; ++d) out[d] /= sum;
}

}  // namespace

void decode_attention(const DecodeAttentionParams& params, const Context& context) {
  check_params(params);
  AttentionTileKernel* kernel =
      select_attention_tile(context.simd, DType::kFloat32, params.kv.dtype);
  Partials partials;
  partials.num_chunks = (params.kv.num_tokens + kChunkTokens - 1) / kChunkTokens;
  const int64_t num_results = partials.num_chunks * params.num_query_heads;
  partials.out.resize(static_cast<size_t>(num_results * params.kv.head_dim));
  partials.lse.resize(static_cast<size_t>(num_results));
  const std::vector<WorkItem> items = plan(params, partials.num_chunks);
  parallel_tasks(std::ssize(items), context.num_threads, [&] {
    return [&, scratch = std::make_unique_for_overwrite<AttentionScratch>()](int64_t i) {
      attend_chunk(params, items[static_cast<size_t>(i)], kernel, *scratch, partials);
    };
  });
  for (int64_t h = 0; h < params.num_query_heads; ++h) merge(params, partials, h);
}

}  // namespace millrace::kernels::cpu
