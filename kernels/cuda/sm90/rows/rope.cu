// Splits a QKV projection, turns Q and K, and writes K and V head-major.
//
// A thread block is a row: its first half threads work out the row's cosines and sines once, for
// all heads; then each thread takes a pair of vectors (elements i.. and i + head_dim / 2 ..) of one
// head after another. Everything is read and written once.

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kVector = 8;
constexpr int kThreads = 128;
constexpr int kMaxHalf = 128;  // head_dim 256

// Where the heads of a row go. Input is float or BFloat16, Output any element type.
template <typename Input, typename Output>
struct RowSplit {
  const Input* qkv;
  const int32_t* positions;
  const float* inv_freq;
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
};

template <typename Input, typename Output>
__global__ void __launch_bounds__(kThreads) rope_qkv_kernel(const RowSplit<Input, Output> split) {
  __shared__ __align__(16) float cosines[kMaxHalf];
  __shared__ __align__(16) float sines[kMaxHalf];
  const int64_t row = blockIdx.x;
  const int half = split.head_dim / 2;
  const auto position = static_cast<float>(split.positions[row]);
  for (int i = threadIdx.x; i < half; i += kThreads) {
    // The angle is a float32 product by definition (docs/numerics.md), and large: the argument
    // needs the whole reduction of sincosf.
    sincosf(__fmul_rn(position, split.inv_freq[i]), &sines[i], &cosines[i]);
  }
  __syncthreads();

  const int num_turned = split.num_query_heads + split.num_kv_heads;
  const int num_heads = num_turned + split.num_kv_heads;
  const int pairs_per_head = half / kVector;
  const Input* from = split.qkv + row * num_heads * split.head_dim;
  for (int pair = threadIdx.x; pair < num_heads * pairs_per_head; pair += kThreads) {
    const int head = pair / pairs_per_head;
    const int i = pair % pairs_per_head * kVector;
    Vector8 first = load8(from + head * split.head_dim + i);
    Vector8 second = load8(from + head * split.head_dim + i + half);
    if (head < num_turned) {
      const Vector8 cosine = load8(cosines + i);
      const Vector8 sine = load8(sines + i);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float x = first[e];
        first[e] = x * cosine[e] - second[e] * sine[e];
        second[e] = second[e] * cosine[e] + x * sine[e];
      }
    }
    Output* to = split.destination(row, head);
    store8(first, to + i);
    store8(second, to + i + half);
  }
}

}  // namespace

void rope_qkv(const RopeQkvParams& params, Context& context) {
  MR_CHECK(params.head_dim % (2 * kVector) == 0 && params.head_dim <= 2 * kMaxHalf,
           "rope: head_dim {}; multiples of {} up to {}", params.head_dim, 2 * kVector,
           2 * kMaxHalf);
  if (params.num_rows == 0) return;
  dispatch_projection_dtype(params.qkv_dtype, [&]<typename Input>(Input) {
    dispatch_dtype(params.dtype, [&]<typename Output>(Output) {
      const RowSplit<Input, Output> split{.qkv = static_cast<const Input*>(params.qkv),
                                          .positions = params.positions,
                                          .inv_freq = params.inv_freq,
                                          .q = static_cast<Output*>(params.q),
                                          .k = static_cast<Output*>(params.k),
                                          .v = static_cast<Output*>(params.v),
                                          .kv_stride = params.kv_stride,
                                          .num_query_heads = params.num_query_heads,
                                          .num_kv_heads = params.num_kv_heads,
                                          .head_dim = params.head_dim};
      rope_qkv_kernel<<<static_cast<unsigned>(params.num_rows), kThreads, 0, context.stream>>>(
          split);
    });
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
