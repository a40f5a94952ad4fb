// SPDX-License-Identifier: Apache-2.0
#include "decode/attention/cpu_page_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/check.h"
#include "common/page_tokens.h"
#include "kernels/cpu/runtime/parallel_tasks.h"
#include "kernels/cpu/runtime/vectorised.h"
#include "kernels/pages/page_rule.h"

namespace millrace::decode {

namespace {

constexpr int64_t kLanes = 16;
// Aligned like the elements.
typedef float Lanes __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef int32_t Bits __attribute__((vector_size(kLanes * 4), aligned(4)));
constexpr float kNothing = -std::numeric_limits<float>::infinity();

MR_INLINE const Lanes& lanes(const float* at) {
  return *reinterpret_cast<const Lanes*>(at);
}
MR_INLINE Lanes& lanes(float* at) {
  return *reinterpret_cast<Lanes*>(at);
}
MR_INLINE Lanes larger(Lanes a, Lanes b) {
  return a > b ? a : b;
}
MR_INLINE Lanes magnitude(Lanes a) {
  return reinterpret_cast<Lanes>(reinterpret_cast<Bits>(a) & 0x7fffffff);
}
MR_INLINE float sum_of(Lanes a) {
  float sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) sum += a[i];
  return sum;
}

// Sums over the dimensions of one page and query head.
struct DigestSums {
  float upper = 0;   // of max(q min, q max)
  float middle = 0;  // of q (min + max) / 2
  float half = 0;    // of |q| (max - min) / 2
  float radius = 0;  // of |q| radius
  float square = 0;  // of (q radius)^2
  float most = 0;    // of |q| max(|min|, |max|)
};

MR_VECTORISED void sum_digest(const float* q, const float* digest, int64_t head_dim,
                              DigestSums* sums) {
  Lanes upper{}, middle{}, half{}, radius{}, square{}, most{};
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const Lanes x = lanes(q + d);
    const Lanes low = lanes(digest + d);
    const Lanes high = lanes(digest + head_dim + d);
    const Lanes mean = lanes(digest + 2 * head_dim + d);
    const Lanes size = magnitude(x);
    upper += larger(x * low, x * high);
    middle += x * (0.5f * (low + high));
    half += size * (0.5f * (high - low));
    radius += size * mean;
    square += (x * mean) * (x * mean);
    most += size * larger(magnitude(low), magnitude(high));
  }
  *sums = {sum_of(upper),  sum_of(middle), sum_of(half),
           sum_of(radius), sum_of(square), sum_of(most)};
}

// The error of a float32 sum of n products, each rounded: (n + 2) units in the last place of the
// sum of magnitudes (Higham 2002, section 3.1). Counted once for the bound and once for the score
// that it bounds, and as much again for the scale and the exponent.
float rounding(const DigestSums& sums, int64_t head_dim) {
  return 4 * static_cast<float>(head_dim + 2) * 0x1p-24f * sums.most;
}

// For n scores within `half` of the centre, with mean distance `radius` from it, the mean of the
// exponentials is largest if all are at the centre or at its upper limit (it is convex).
float log_mean_bound(float half, float radius) {
  if (half <= 0) return 0;
  const float share = std::min(1.0f, radius / half);
  return half + std::log(share + (1 - share) * std::exp(-half));
}

kernels::PageEstimate estimate_of(const DigestSums& sums, float scale, int64_t head_dim,
                                  int64_t num_tokens) {
  const float count = std::log(static_cast<float>(num_tokens));
  const float error = rounding(sums, head_dim);
  // The radius is a float32 mean of 64 distances from a rounded centre.
  const float radius = sums.radius * 1.0001f + 0x1p-20f * sums.most;
  const float box = scale * sums.upper;
  const float by_radius =
      scale * sums.middle + log_mean_bound(scale * (sums.half + error), scale * radius);
  return {.bound = count + std::min(box, by_radius) + scale * error + 1e-4f,
          .box = count + box,
          .centre = count + scale * sums.middle,
          .spread = scale * kernels::PageRuleNumbers::kGaussian * std::sqrt(sums.square),
          .rank = count + scale * (sums.middle + sums.radius)};
}

void estimate_item(const EstimateItem& item) {
  for (int64_t page = 0; page < item.num_pages; ++page) {
    const float* const digest = item.digests + page * 3 * item.head_dim;
    const int64_t tokens = std::min<int64_t>(kPageTokens, item.num_tokens - page * kPageTokens);
    for (int64_t head = 0; head < item.num_heads; ++head) {
      DigestSums sums;
      sum_digest(item.q + head * item.head_dim, digest, item.head_dim, &sums);
      item.estimates[head * item.num_pages + page] =
          estimate_of(sums, item.scale, item.head_dim, tokens);
    }
  }
}

MR_VECTORISED void widen_bfloat16(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{from[i]} << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

// Exponent and mantissa, moved to a float's positions, are the number times 2^-112, subnormals
// included. Infinity and NaN then lack the upper bits of their exponent.
MR_VECTORISED void widen_float16(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t shifted = uint32_t{from[i] & 0x7fffu} << 13;
    float finite;
    std::memcpy(&finite, &shifted, sizeof finite);
    finite *= 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &finite, sizeof bits);
    bits = (shifted >= 0x0f800000u ? shifted | 0x7f800000u : bits) | (uint32_t{from[i]} & 0x8000u)
                                                                         << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

// scores[head][token]
MR_VECTORISED void score(const float* q, int64_t num_heads, const float* k, int64_t num_tokens,
                         int64_t head_dim, float* scores) {
  for (int64_t head = 0; head < num_heads; ++head) {
    const float* const row = q + head * head_dim;
    for (int64_t token = 0; token < num_tokens; ++token) {
      Lanes sum{};
      for (int64_t d = 0; d < head_dim; d += kLanes) {
        sum += lanes(row + d) * lanes(k + token * head_dim + d);
      }
      scores[head * kPageTokens + token] = sum_of(sum);
    }
  }
}

// out[head] = rescale[head] out[head] + sum over tokens of weights[head][token] v[token]
MR_VECTORISED void accumulate(const float* weights, const float* rescale, int64_t num_heads,
                              const float* v, int64_t num_tokens, int64_t head_dim, float* out) {
  for (int64_t head = 0; head < num_heads; ++head) {
    const float* const weight = weights + head * kPageTokens;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      Lanes sum = lanes(out + head * head_dim + d) * rescale[head];
      for (int64_t token = 0; token < num_tokens; ++token) {
        sum += weight[token] * lanes(v + token * head_dim + d);
      }
      lanes(out + head * head_dim + d) = sum;
    }
  }
}

// Working memory of a thread.
struct Scratch {
  std::vector<float> k, v, scores, rescale;

  void fit(const AttendItem& item) {
    const auto rows = static_cast<size_t>(kPageTokens * item.head_dim);
    if (item.dtype != DType::kFloat32) {
      k.resize(rows);
      v.resize(rows);
    }
    scores.resize(static_cast<size_t>(item.num_heads * kPageTokens));
    rescale.resize(static_cast<size_t>(item.num_heads));
  }
};

const float* widened(const std::byte* rows, DType dtype, int64_t count, std::vector<float>& to) {
  if (dtype == DType::kFloat32) return reinterpret_cast<const float*>(rows);
  const auto* const halves = reinterpret_cast<const uint16_t*>(rows);
  if (dtype == DType::kBFloat16) {
    widen_bfloat16(halves, count, to.data());
  } else {
    widen_float16(halves, count, to.data());
  }
  return to.data();
}

// Turns scores into weights relative to the state's maximum, which is raised if need be.
void weigh(const AttendItem& item, int64_t num_tokens, float* log_mass, Scratch& scratch) {
  for (int64_t head = 0; head < item.num_heads; ++head) {
    float* const scores = scratch.scores.data() + head * kPageTokens;
    float page_max = kNothing;
    for (int64_t i = 0; i < num_tokens; ++i) {
      scores[i] *= item.scale;
      page_max = std::max(page_max, scores[i]);
    }
    float& max = item.state.max[head];
    const float new_max = std::max(max, page_max);
    float sum = 0, page_sum = 0;
    for (int64_t i = 0; i < num_tokens; ++i) {
      page_sum += std::exp(scores[i] - page_max);
      scores[i] = std::exp(scores[i] - new_max);
      sum += scores[i];
    }
    log_mass[head] = page_max + std::log(page_sum);
    const float rescale = max == kNothing ? 0.0f : std::exp(max - new_max);
    scratch.rescale[static_cast<size_t>(head)] = rescale;
    item.state.sum[head] = item.state.sum[head] * rescale + sum;
    max = new_max;
  }
}

void attend_item(const AttendItem& item, Scratch& scratch) {
  scratch.fit(item);
  const int64_t half = kPageTokens * item.head_dim;
  for (size_t i = 0; i < item.pages.size(); ++i) {
    const PageRows& page = item.pages[i];
    const int64_t count = page.num_tokens * item.head_dim;
    const auto* const rows =
        page.k_then_v + page.first_token * item.head_dim * dtype_bytes(item.dtype);
    const float* const k = widened(rows, item.dtype, count, scratch.k);
    score(item.q, item.num_heads, k, page.num_tokens, item.head_dim, scratch.scores.data());
    weigh(item, page.num_tokens, item.log_mass + static_cast<int64_t>(i) * item.num_heads, scratch);
    const float* const v =
        widened(rows + half * dtype_bytes(item.dtype), item.dtype, count, scratch.v);
    accumulate(scratch.scores.data(), scratch.rescale.data(), item.num_heads, v, page.num_tokens,
               item.head_dim, item.state.out);
  }
}

}  // namespace

void CpuPageKernel::estimate(std::span<const EstimateItem> items) {
  kernels::cpu::parallel_tasks(std::ssize(items), num_threads_, [&] {
    return [&](int64_t i) { estimate_item(items[static_cast<size_t>(i)]); };
  });
}

void CpuPageKernel::attend(std::span<const AttendItem> items) {
  for (const AttendItem& item : items) {
    MR_CHECK(item.head_dim > 0 && item.head_dim % kLanes == 0,
             "head_dim {} is not a multiple of {}", item.head_dim, kLanes);
  }
  kernels::cpu::parallel_tasks(std::ssize(items), num_threads_, [&] {
    return [&, scratch = Scratch()](int64_t i) mutable {
      attend_item(items[static_cast<size_t>(i)], scratch);
    };
  });
}

}  // namespace millrace::decode
