// A block of 128 threads per set of vectors, which it reads once and keeps in registers.
#include "kernels/cuda/estimation/representatives.h"

#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/estimation/head_dim.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMostRows = 64;
constexpr int kVector = 8;  // columns of a thread: 16 bytes
// Blocks on a multiprocessor: 80 KiB of rows on the way. A sixth takes registers that then spill,
// as a fifth does where the compiler keeps widened float16.
template <typename Element>
constexpr int kBlocks = std::is_same_v<Element, Float16> ? 4 : 5;

struct alignas(16) HalfVector {
  __half2 pairs[kVector / 2];
};

template <typename Element, int kHeadDim>
class SplitSet {
  static constexpr int kColumnThreads = kHeadDim / kVector;
  static constexpr int kRowThreads = kThreads / kColumnThreads;
  static constexpr int kRows = kMostRows / kRowThreads;  // of a thread

 public:
  struct Shared {
    float partial[kRowThreads][kHeadDim];
    float mean[kHeadDim];
    float crowd[kHeadDim];
    float distance[kMostRows];
    uint64_t outliers;
  };

  __device__ explicit SplitSet(Shared& shared) : shared_(shared) {}

  __device__ void load(const Element* rows, int64_t row_stride, int num_rows) {
    num_rows_ = num_rows;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Element* first = rows + row(i) * row_stride + column();
      rows_[i] = row(i) < num_rows ? *reinterpret_cast<const uint4*>(first) : uint4{};
    }
  }

  // Afterwards outliers() and mean() are there for every thread.
  __device__ void split(int num_outliers) {
    sum_rows(0, num_rows_, shared_.mean);
    measure();
    if (threadIdx.x < 32) choose(num_outliers);
    __syncthreads();
  }

  // The mean of the rows that are no outliers, of which there must be some, into crowd().
  __device__ void average_crowd() {
    sum_rows(outliers(), num_rows_ - __popcll(outliers()), shared_.crowd);
  }
  __device__ void average_all() {
    sum_rows(0, num_rows_, shared_.mean);
  }

  __device__ uint64_t outliers() const {
    return shared_.outliers;
  }
  __device__ int num_rows() const {
    return num_rows_;
  }
  __device__ const float* mean() const {
    return shared_.mean;
  }
  __device__ const float* crowd() const {
    return shared_.crowd;
  }

  // Outlier number s to out + s * stride.
  __device__ void store_outliers(__half* out, int64_t stride) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if ((outliers() >> row(i) & 1) == 0) continue;
      const int number = __popcll(outliers() & ((uint64_t{1} << row(i)) - 1));
      HalfVector values;
#pragma unroll
      for (int pair = 0; pair < kVector / 2; ++pair) {
        values.pairs[pair] = __floats2half2_rn(value(i, 2 * pair), value(i, 2 * pair + 1));
      }
      *reinterpret_cast<HalfVector*>(out + number * stride + column()) = values;
    }
  }

 private:
  __device__ static int column() {
    return static_cast<int>(threadIdx.x) % kColumnThreads * kVector;
  }
  __device__ static int row(int i) {
    return i * kRowThreads + static_cast<int>(threadIdx.x) / kColumnThreads;
  }
  __device__ float value(int i, int c) const {
    const uint32_t words[4] = {rows_[i].x, rows_[i].y, rows_[i].z, rows_[i].w};
    const uint32_t word = words[c / 2];
    if constexpr (std::is_same_v<Element, Float16>) {
      return widen(Float16{static_cast<uint16_t>(c % 2 == 0 ? word : word >> 16)});
    } else {
      return __uint_as_float(c % 2 == 0 ? word << 16 : word & 0xFFFF0000U);
    }
  }

  // Rows not in `skipped`, over `count`: a thread's rows, then those sums in order.
  __device__ void sum_rows(uint64_t skipped, int count, float* out) {
    float sums[kVector] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row(i) >= num_rows_ || (skipped >> row(i) & 1) != 0) continue;
#pragma unroll
      for (int c = 0; c < kVector; ++c) sums[c] += value(i, c);
    }
    float* partial = &shared_.partial[threadIdx.x / kColumnThreads][column()];
#pragma unroll
    for (int c = 0; c < kVector; ++c) partial[c] = sums[c];
    __syncthreads();
    if (threadIdx.x < kHeadDim) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kRowThreads; ++i) sum += shared_.partial[i][threadIdx.x];
      out[threadIdx.x] = sum / static_cast<float>(count);
    }
    __syncthreads();
  }

  // Squared distances from the mean.
  __device__ void measure() {
    float mean[kVector];
#pragma unroll
    for (int c = 0; c < kVector; ++c) mean[c] = shared_.mean[column() + c];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        const float difference = value(i, c) - mean[c];
        sum += difference * difference;
      }
#pragma unroll
      for (int lanes = 1; lanes < kColumnThreads; lanes *= 2) {
        sum += __shfl_xor_sync(~0U, sum, lanes);
      }
      if (column() == 0) shared_.distance[row(i)] = sum;
    }
    __syncthreads();
  }

  // The rows furthest from the mean, ties to the smaller row; NaN is furthest. One warp.
  __device__ void choose(int num_outliers) {
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t keys[2];  // falling with the distance; all ones: taken or absent
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int candidate = lane + 32 * i;
      const uint32_t bits = __float_as_uint(shared_.distance[candidate]);
      keys[i] = candidate < num_rows_ ? ~(bits | 0x80000000U) : ~0U;
    }
    uint64_t chosen = 0;
    for (int count = min(num_outliers, num_rows_); count > 0; --count) {
      const uint32_t best = __reduce_min_sync(~0U, min(keys[0], keys[1]));
      const int candidate = keys[0] == best ? lane : keys[1] == best ? lane + 32 : kMostRows;
      const int taken = __reduce_min_sync(~0U, candidate);
      chosen |= uint64_t{1} << taken;
      if (taken == lane) keys[0] = ~0U;
      if (taken == lane + 32) keys[1] = ~0U;
    }
    if (lane == 0) shared_.outliers = chosen;
  }

  Shared& shared_;
  int num_rows_ = 0;
  uint4 rows_[kRows];
};

template <int kHeadDim>
__device__ void store_vector(const float* values, __half* out) {
  if (threadIdx.x < kHeadDim) {
    out[threadIdx.x] = __float2half_rn(values == nullptr ? 0.0F : values[threadIdx.x]);
  }
}

// blockIdx.x is the page, blockIdx.y the kv head.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocks<Element>)
    page_kernel(const __grid_constant__ KvSlab kv, int32_t page_outliers, __half* out) {
  __shared__ typename SplitSet<Element, kHeadDim>::Shared shared;
  SplitSet<Element, kHeadDim> set(shared);
  const int64_t page = blockIdx.x;
  const int64_t num_places = (gridDim.x + kPlaceGroup - 1) / kPlaceGroup * kPlaceGroup;
  const int64_t first = page * kPageTokens;
  const int64_t row = blockIdx.y * kv.token_stride + first;
  set.load(static_cast<const Element*>(kv.k) + row * kHeadDim, kHeadDim,
           static_cast<int>(min(kPageTokens, kv.num_tokens - first)));
  const int num_outliers = min(page_outliers, set.num_rows());
  const int64_t slot_stride = num_places * kHeadDim;
  __half* crowd =
      out + (blockIdx.y * (page_outliers + 1) * num_places + representative_place(page)) * kHeadDim;
  if (page_outliers == 0) {
    set.average_all();
    store_vector<kHeadDim>(set.mean(), crowd);
    return;
  }
  set.split(num_outliers);
  set.store_outliers(crowd + slot_stride, slot_stride);
  for (int slot = num_outliers; slot < page_outliers; ++slot) {
    store_vector<kHeadDim>(nullptr, crowd + (slot + 1) * slot_stride);
  }
  if (num_outliers < set.num_rows()) {
    set.average_crowd();
    store_vector<kHeadDim>(set.crowd(), crowd);
  } else {
    store_vector<kHeadDim>(nullptr, crowd);
  }
}

// A block per tile and head, heads side by side as they are in a row of Q.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocks<Element>)
    row_kernel(const __grid_constant__ RowRepresentativeArguments arguments, __half* out) {
  __shared__ typename SplitSet<Element, kHeadDim>::Shared shared;
  SplitSet<Element, kHeadDim> set(shared);
  const int64_t tile_number = blockIdx.x / arguments.num_heads;
  const int64_t head_number = blockIdx.x % arguments.num_heads;
  const RowTile tile = arguments.tiles[tile_number];
  const int64_t row_stride = int64_t{arguments.num_query_heads} * kHeadDim;
  const int64_t head = arguments.heads[head_number];
  set.load(static_cast<const Element*>(arguments.q) + tile.local_row * row_stride + head * kHeadDim,
           row_stride, static_cast<int>(tile.num_rows));
  const int64_t first_slot =
      (head_number * arguments.num_tiles + tile_number) * (arguments.row_outliers + 1);
  __half* slots = out + first_slot * kHeadDim;
  if (arguments.row_outliers == 0) {
    set.average_all();
    store_vector<kHeadDim>(set.mean(), slots);
    return;
  }
  const int num_outliers = min(arguments.row_outliers, set.num_rows());
  set.split(num_outliers);
  store_vector<kHeadDim>(set.mean(), slots);
  set.store_outliers(slots + kHeadDim, kHeadDim);
  for (int slot = num_outliers; slot < arguments.row_outliers; ++slot) {
    store_vector<kHeadDim>(nullptr, slots + (slot + 1) * kHeadDim);
  }
}

}  // namespace

void launch_page_representatives(const KvSlab& kv, int32_t page_outliers, __half* out,
                                 cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((kv.num_tokens + kPageTokens - 1) / kPageTokens),
                  static_cast<unsigned>(kv.num_kv_heads));
  for_elements(kv.dtype, kv.head_dim, [&](auto element, auto head_dim) {
    page_kernel<decltype(element), head_dim()>
        <<<grid, kThreads, 0, stream>>>(kv, page_outliers, out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

void launch_row_representatives(const RowRepresentativeArguments& arguments, __half* out,
                                cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(arguments.num_tiles * arguments.num_heads);
  for_elements(arguments.dtype, arguments.head_dim, [&](auto element, auto head_dim) {
    row_kernel<decltype(element), head_dim()><<<grid, kThreads, 0, stream>>>(arguments, out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
