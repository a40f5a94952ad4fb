// SPDX-License-Identifier: Apache-2.0
// Splits a QKV projection, normalises and rotates Q and K, and writes K and V head-major.
//
// A thread block computes one row. Its first threads compute the row's cosines and sines once, for
// all heads. Then each thread takes pairs of vectors, one head after another: of the elements that
// rotate, those from i and from i + rotary_dim / 2 on; of the others, and of all if neighbours
// rotate, 16 consecutive ones. The threads of a head are neighbours in a warp, so its norm is a few
// shuffles; the scale of a norm over all heads follows from the sums of qkv_squares. Everything is
// read and written once.

#include <bit>

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/block_reduce.cuh"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kVector = 8;
constexpr int kThreads = 128;
constexpr int kMaxHalf = 128;  // head_dim 256

enum class Norm { kNone, kOfHeads, kOverAllHeads };

// Where the heads of a row are written. Input is float or BFloat16, Output any element type.
template <typename Input, typename Output>
struct RowSplit {
  const Input* qkv;
  const int32_t* positions;
  const float* inv_freq;
  const float* q_norm;
  const float* k_norm;
  const float* squares;
  float num_q_squares;
  float num_k_squares;
  float norm_eps;
  float turn_scale;
  int32_t rotary_dim;
  bool interleaved;
  Output* q;
  Output* k;
  Output* v;
  int64_t kv_stride;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t head_dim;

  __device__ Output* destination(int64_t row, int32_t head) const {
    if (head < num_query_heads) return q + (row * num_query_heads + head) * head_dim;
    head -= num_query_heads;
    if (head < num_kv_heads) return k + (head * kv_stride + row) * head_dim;
    return v + ((head - num_kv_heads) * kv_stride + row) * head_dim;
  }

  // For a norm over all heads: the mean square of everything that is normalised together with
  // `head`.
  __device__ float mean_square(int64_t row, int32_t head) const {
    return head < num_query_heads ? squares[2 * row] / num_q_squares
                                  : squares[2 * row + 1] / num_k_squares;
  }

  // The weights of the norm of a head, or of its part of a norm over all heads.
  template <Norm kNorm>
  __device__ const float* norm_weights(int32_t head) const {
    constexpr bool kApart = kNorm == Norm::kOverAllHeads;
    if (head < num_query_heads) return q_norm + (kApart ? head * head_dim : 0);
    return k_norm + (kApart ? (head - num_query_heads) * head_dim : 0);
  }
};

// The sum over the `num_lanes` lanes (a power of two) that share a head; all of them call it.
__device__ float sum_of_head(float value, int num_lanes) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned of_head = (1u << num_lanes) - 1;  // 16 at most
  const unsigned lanes = of_head << (lane & ~static_cast<unsigned>(num_lanes - 1));
  for (int distance = 1; distance < num_lanes; distance *= 2) {
    value += __shfl_xor_sync(lanes, value, distance);
  }
  return value;
}

__device__ float sum_of_squares(const Vector8& v) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kVector; ++e) sum += v[e] * v[e];
  return sum;
}

__device__ void scale_by(Vector8& v, float scale, const float* weights) {
  const Vector8 weight = load8(weights);
#pragma unroll
  for (int e = 0; e < kVector; ++e) v[e] = v[e] * scale * weight[e];
}

// Rotates the elements of one vector with those of the other.
__device__ void turn(Vector8& first, Vector8& second, const Vector8& cosine, const Vector8& sine) {
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const float x = first[e];
    first[e] = x * cosine[e] - second[e] * sine[e];
    second[e] = second[e] * cosine[e] + x * sine[e];
  }
}

// Rotates pairs of neighbours, by the cosines and sines from `begin` on.
__device__ void turn_neighbours(Vector8& v, const Vector8& cosine, const Vector8& sine, int begin) {
#pragma unroll
  for (int e = 0; e < kVector / 2; ++e) {
    const float x = v[2 * e];
    v[2 * e] = x * cosine[begin + e] - v[2 * e + 1] * sine[begin + e];
    v[2 * e + 1] = v[2 * e + 1] * cosine[begin + e] + x * sine[begin + e];
  }
}

template <Norm kNorm, typename Input, typename Output>
__global__ void __launch_bounds__(kThreads) rope_qkv_kernel(const RowSplit<Input, Output> split) {
  __shared__ __align__(16) float cosines[kMaxHalf];
  __shared__ __align__(16) float sines[kMaxHalf];
  const int64_t row = blockIdx.x;
  const int half = split.rotary_dim / 2;
  const auto position = static_cast<float>(split.positions[row]);
  for (int i = threadIdx.x; i < half; i += kThreads) {
    // The angle is a float32 product by definition (docs/numerics.md). It may be large, so the
    // argument needs the full reduction of sincosf.
    float sine, cosine;
    sincosf(__fmul_rn(position, split.inv_freq[i]), &sine, &cosine);
    sines[i] = sine * split.turn_scale;
    cosines[i] = cosine * split.turn_scale;
  }
  __syncthreads();

  const int num_turned = split.num_query_heads + split.num_kv_heads;
  const int num_heads = num_turned + split.num_kv_heads;
  const int pairs_per_head = split.head_dim / (2 * kVector);
  const int turned_pairs = half / kVector;
  const Input* from = split.qkv + row * num_heads * split.head_dim;
  for (int pair = threadIdx.x; pair < num_heads * pairs_per_head; pair += kThreads) {
    const int head = pair / pairs_per_head;
    const int number = pair % pairs_per_head;
    const bool turns = number < turned_pairs;
    const bool apart = turns && !split.interleaved;
    // For vectors that do not rotate, 2 half + 16 (number - turned_pairs) is 16 number.
    const int i = number * (apart ? kVector : 2 * kVector);
    const int j = i + (apart ? half : kVector);
    Vector8 first = load8(from + head * split.head_dim + i);
    Vector8 second = load8(from + head * split.head_dim + j);
    if constexpr (kNorm != Norm::kNone) {
      if (head < num_turned) {
        float mean;
        if constexpr (kNorm == Norm::kOfHeads) {
          const float sum =
              sum_of_head(sum_of_squares(first) + sum_of_squares(second), pairs_per_head);
          mean = sum / static_cast<float>(split.head_dim);
        } else {
          mean = split.mean_square(row, head);
        }
        const float scale = 1.0F / sqrtf(mean + split.norm_eps);
        const float* weights = split.template norm_weights<kNorm>(head);
        scale_by(first, scale, weights + i);
        scale_by(second, scale, weights + j);
      }
    }
    if (head < num_turned && turns) {
      const Vector8 cosine = load8(cosines + number * kVector);
      const Vector8 sine = load8(sines + number * kVector);
      if (split.interleaved) {
        turn_neighbours(first, cosine, sine, 0);
        turn_neighbours(second, cosine, sine, kVector / 2);
      } else {
        turn(first, second, cosine, sine);
      }
    }
    Output* to = split.destination(row, head);
    store8(first, to + i);
    store8(second, to + j);
  }
}

template <typename Input, typename Output>
void launch(const RopeQkvParams& params, cudaStream_t stream) {
  const RowSplit<Input, Output> split{.qkv = static_cast<const Input*>(params.qkv),
                                      .positions = params.positions,
                                      .inv_freq = params.inv_freq,
                                      .q_norm = params.q_norm,
                                      .k_norm = params.k_norm,
                                      .squares = params.squares,
                                      .num_q_squares = static_cast<float>(params.num_q_squares),
                                      .num_k_squares = static_cast<float>(params.num_k_squares),
                                      .norm_eps = params.norm_eps,
                                      .turn_scale = params.turn_scale,
                                      .rotary_dim = params.num_turned(),
                                      .interleaved = params.interleaved,
                                      .q = static_cast<Output*>(params.q),
                                      .k = static_cast<Output*>(params.k),
                                      .v = static_cast<Output*>(params.v),
                                      .kv_stride = params.kv_stride,
                                      .num_query_heads = params.num_query_heads,
                                      .num_kv_heads = params.num_kv_heads,
                                      .head_dim = params.head_dim};
  auto* kernel = params.q_norm == nullptr    ? rope_qkv_kernel<Norm::kNone, Input, Output>
                 : params.squares == nullptr ? rope_qkv_kernel<Norm::kOfHeads, Input, Output>
                                             : rope_qkv_kernel<Norm::kOverAllHeads, Input, Output>;
  kernel<<<static_cast<unsigned>(params.num_rows), kThreads, 0, stream>>>(split);
}

// A thread block sums Q or K of one row.
template <typename Input>
__global__ void __launch_bounds__(kThreads)
    qkv_squares_kernel(const Input* qkv, int64_t q_width, int64_t k_width, float* squares) {
  const int64_t row = blockIdx.x;
  const bool of_q = blockIdx.y == 0;
  const Input* from = qkv + row * (q_width + 2 * k_width) + (of_q ? 0 : q_width);
  const int64_t width = of_q ? q_width : k_width;
  float sum = 0;
  for (int64_t i = int64_t{threadIdx.x} * kVector; i < width; i += kThreads * kVector) {
    sum += sum_of_squares(load8(from + i));
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) squares[2 * row + blockIdx.y] = sum;
}

}  // namespace

void qkv_squares(const QkvSquaresParams& params, Context& context) {
  MR_CHECK(params.head_dim % kVector == 0, "squares: head_dim {}; multiples of {}", params.head_dim,
           kVector);
  if (params.num_rows == 0) return;
  dispatch_projection_dtype(params.qkv_dtype, [&]<typename Input>(Input) {
    const dim3 blocks(static_cast<unsigned>(params.num_rows), 2);
    qkv_squares_kernel<<<blocks, kThreads, 0, context.stream>>>(
        static_cast<const Input*>(params.qkv), int64_t{params.num_query_heads} * params.head_dim,
        int64_t{params.num_kv_heads} * params.head_dim, params.squares);
  });
  MR_CUDA_CHECK_LAUNCH();
}

void rope_qkv(const RopeQkvParams& params, Context& context) {
  constexpr int kPair = 2 * kVector;
  MR_CHECK(params.head_dim % kPair == 0 && params.head_dim <= 2 * kMaxHalf,
           "rope: head_dim {}; multiples of {} up to {}", params.head_dim, kPair, 2 * kMaxHalf);
  MR_CHECK(params.num_turned() % kPair == 0 && params.num_turned() <= params.head_dim,
           "rope: {} of {} elements turn; multiples of {}", params.rotary_dim, params.head_dim,
           kPair);
  MR_CHECK((params.q_norm == nullptr) == (params.k_norm == nullptr),
           "rope: one of Q and K is normalised");
  MR_CHECK(params.squares == nullptr || params.q_norm != nullptr,
           "rope: squares of norms without weights");
  const bool norms_heads = params.q_norm != nullptr && params.squares == nullptr;
  MR_CHECK(!norms_heads || std::has_single_bit(static_cast<uint32_t>(params.head_dim)),
           "rope: norms of heads of {}; powers of two", params.head_dim);
  if (params.num_rows == 0) return;
  dispatch_projection_dtype(params.qkv_dtype, [&]<typename Input>(Input) {
    dispatch_dtype(params.dtype,
                   [&]<typename Output>(Output) { launch<Input, Output>(params, context.stream); });
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
