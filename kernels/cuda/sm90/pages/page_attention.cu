// SPDX-License-Identifier: Apache-2.0
// Progressive attention of a decode step, all kv heads of a layer in one launch. The blocks of each
// kv head
//
// 1. attend to the units (at most four pages, one warp each) of as many portions as the last token
//    needed; each unit writes its softmax state, each page its log mass;
// 2. wait for each other, and ask the rule at the end of every portion, one block for each end and
//    query head;
// 3. wait again; if no portion was enough, repeat from 1 with one more portion, then two more ...;
// 4. merge the states of the units up to the first portion that was enough for all query heads with
//    the tail behind the prompt; a sink then takes its share of both.
//
// So which pages count follows from the order and the rule alone, as if portions were attended one
// after the other, and the host is not involved. In a layer with a window all pages of the order
// are attended to, whatever the rule. The launch is cooperative: all blocks run at once.

#include <algorithm>
#include <type_traits>

#include "common/check.h"
#include "common/page_tokens.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/pages/log_sum.cuh"
#include "kernels/cuda/sm90/pages/page_launches.h"
#include "kernels/cuda/sm90/rows/element.cuh"
#include "kernels/cuda/sm90/rows/float8.cuh"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kVector = 8;
constexpr int kWarpThreads = 32;
constexpr int kThreads = kUnitPages * kWarpThreads;
constexpr int kTokens = static_cast<int>(kPageTokens);
// Multiprocessors left to concurrent kernels: a cooperative launch starts only once all its blocks
// fit.
constexpr int kSparedSms = 12;
// Pages of a kv head to begin with for the first token, when nothing is known.
constexpr int kFirstPages = 64;
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.69314718F;

// A unit's pages, one for each warp, under up to kHeads queries.
template <int kDim, int kHeads>
struct UnitShared {
  float weights[kUnitPages][kHeads][kTokens];
  float maximum[kUnitPages][kHeads];  // times log2(e)
  float sum[kUnitPages][kHeads];
  __align__(16) float out[kUnitPages][kHeads][kDim];
};

__device__ uint64_t place_of(const PageTables& t, int64_t number) {
  // Volatile: concurrent kernels write it.
  return *reinterpret_cast<const volatile uint64_t*>(t.place + number) & ~kLoading;
}

__device__ bool at_host(const PageTables& t, uint64_t place) {
  return place - reinterpret_cast<uint64_t>(t.slots) >=
         static_cast<uint64_t>(t.num_slots) * static_cast<uint64_t>(t.page_bytes);
}

// The tokens of a page that take part.
struct PageTokens {
  int begin, end;
};

// How a warp reads rows of K or V: several rows at once, one vector for each lane.
template <typename Element, int kDim, int kHeads>
struct WarpRows {
  using Raw = std::conditional_t<sizeof(Element) == 1, uint2, uint4>;
  static constexpr int kLanes = kDim / kVector;  // per row
  static constexpr int kRows = kWarpThreads / kLanes;
  // Loads in flight: 128 bytes for each lane, if the number of queries leaves it the registers.
  static constexpr int kSteps = kHeads > 4 ? 8 : 128 / static_cast<int>(sizeof(Raw));

  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int row = lane / kLanes;
  const int element = lane % kLanes * kVector;

  // Calls use(token, vector) for these tokens of a page, with codes if elements are 8-bit floats.
  // It is also called for tokens around them, with arbitrary vectors.
  template <typename Use>
  __device__ void for_each(const Element* rows, const PageTokens& tokens, Use use) const {
    constexpr int kRound = kSteps * kRows;
#pragma unroll 1
    for (int base = tokens.begin / kRound * kRound; base < tokens.end; base += kRound) {
      Raw raw[kSteps];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int token = min(max(base + s * kRows + row, tokens.begin), tokens.end - 1);
        raw[s] = *reinterpret_cast<const Raw*>(rows + token * kDim + element);
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        use(base + s * kRows + row, load8(reinterpret_cast<const Element*>(&raw[s])));
      }
    }
  }
};

// Scores of a warp's page, times log2(e), stored where the weights will be.
template <typename Element, int kDim, int kHeads>
__device__ void score_keys(const Element* keys, const PageTokens& tokens, float scale_log2,
                           const Vector8 (&q)[kHeads], int warp, UnitShared<kDim, kHeads>& shared) {
  using Rows = WarpRows<Element, kDim, kHeads>;
  const Rows rows;
  rows.for_each(keys, tokens, [&](int token, const Vector8& k) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float product = 0;
#pragma unroll
      for (int e = 0; e < kVector; ++e) product += q[h][e] * k[e];
#pragma unroll
      for (int mask = Rows::kLanes / 2; mask > 0; mask /= 2) {
        product += __shfl_xor_sync(0xffffffffu, product, mask);
      }
      if (rows.element == 0) shared.weights[warp][h][token] = product * scale_log2;
    }
  });
}

// Weights relative to the page's own maximum; 0 for tokens that take no part.
template <int kDim, int kHeads>
__device__ void weigh_page(const PageTokens& tokens, int group, int warp,
                           UnitShared<kDim, kHeads>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  for (int h = 0; h < group; ++h) {
    float scores[kTokens / kWarpThreads];
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTokens / kWarpThreads; ++i) {
      const int key = i * kWarpThreads + lane;
      const bool takes_part = key >= tokens.begin && key < tokens.end;
      scores[i] = takes_part ? shared.weights[warp][h][key] : -INFINITY;
      most = fmaxf(most, scores[i]);
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kTokens / kWarpThreads; ++i) {
      const float weight = exp2f(scores[i] - most);
      shared.weights[warp][h][i * kWarpThreads + lane] = weight;
      sum += weight;
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (lane == 0) {
      shared.maximum[warp][h] = most;
      shared.sum[warp][h] = sum;
    }
  }
}

template <typename Element, int kDim, int kHeads>
__device__ void sum_values(const Element* values, const PageTokens& tokens, int group, int warp,
                           UnitShared<kDim, kHeads>& shared) {
  using Rows = WarpRows<Element, kDim, kHeads>;
  const Rows rows;
  Vector8 out[kHeads] = {};
  rows.for_each(values, tokens, [&](int token, const Vector8& v) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float weight = h < group ? shared.weights[warp][h][token] : 0;
#pragma unroll
      for (int e = 0; e < kVector; ++e) out[h][e] += weight * v[e];
    }
  });
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int mask = Rows::kLanes; mask < kWarpThreads; mask *= 2) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        out[h][e] += __shfl_xor_sync(0xffffffffu, out[h][e], mask);
      }
    }
    if (rows.row == 0) store8(out[h], &shared.out[warp][h][rows.element]);
  }
}

// Portions and units of a kv head whose order has `count` pages.
struct HeadPages {
  const PagePortions& portions;
  int count;

  __device__ int up_to(int portion) const { return min(portions.ends[portion], count); }
  __device__ int units_up_to(int portion) const {
    const int pages_before = portion == 0 ? 0 : portions.ends[portion - 1];
    const int units_before = portion == 0 ? 0 : portions.unit_ends[portion - 1];
    return units_before + (max(0, up_to(portion) - pages_before) + kUnitPages - 1) / kUnitPages;
  }
  // The first portion that ends at or after so many pages, or the last portion.
  __device__ int portion_of(int pages) const {
    int portion = 0;
    while (up_to(portion) < min(pages, count)) ++portion;
    return portion;
  }
  // The last portion all of whose pages may be attended to.
  __device__ int last_portion(int max_pages) const {
    int portion = portions.num_portions - 1;
    while (portion > 0 && portions.ends[portion - 1] >= count) --portion;
    while (portion > 0 && up_to(portion) > max_pages) --portion;
    return portion;
  }
};

// Side 0 is K, side 1 is V.
__device__ float page_scale(const PageAttention& a, int kv_head, int side) {
  return a.page_scales == nullptr ? 1.0F : a.page_scales[2 * kv_head + side];
}

// Attends to the pages of a unit, then merges their states into that of the unit.
template <typename Element, int kDim, int kHeads>
__device__ void attend_unit(const PageAttention& a, int kv_head, const HeadPages& pages, int unit,
                            const Vector8 (&q)[kHeads], UnitShared<kDim, kHeads>& shared) {
  const PageTables& t = a.tables;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int first = a.portions.unit_pages[unit];
  const int count = min(a.portions.unit_pages[unit + 1], pages.count) - first;
  if (warp < count) {
    const int page = a.order.pages[kv_head * t.num_pages + first + warp];
    const uint64_t place = place_of(t, t.number(a.layer, kv_head, page));
    const int64_t before = int64_t{page} * kPageTokens;
    const PageTokens tokens = {static_cast<int>(max(int64_t{0}, a.first_token - before)),
                               static_cast<int>(min(kPageTokens, t.num_tokens - before))};
    const auto* const keys = reinterpret_cast<const Element*>(place);
    score_keys(keys, tokens, a.scale * page_scale(a, kv_head, 0) * kLog2E, q, warp, shared);
    __syncwarp();
    weigh_page(tokens, t.group, warp, shared);
    __syncwarp();
    sum_values(keys + kTokens * kDim, tokens, t.group, warp, shared);
    __syncwarp();
    if (lane < t.group) {
      a.log_mass[(static_cast<int64_t>(kv_head) * t.group + lane) * t.num_pages + first + warp] =
          shared.maximum[warp][lane] * kLn2 + logf(shared.sum[warp][lane]);
    }
    if (lane == 0 && at_host(t, place)) {
      atomicAdd(&t.counters[static_cast<int>(PageCounter::kFromHost)], 1ULL);
    }
  }
  __syncthreads();
  const int64_t part = (static_cast<int64_t>(kv_head) * a.portions.num_units + unit) * t.group;
  for (int i = static_cast<int>(threadIdx.x); i < t.group * kDim; i += kThreads) {
    const int h = i / kDim, d = i % kDim;
    float most = -INFINITY;
    for (int w = 0; w < count; ++w) most = fmaxf(most, shared.maximum[w][h]);
    float sum = 0, out = 0;
    for (int w = 0; w < count; ++w) {
      const float weight = exp2f(shared.maximum[w][h] - most);
      sum += weight * shared.sum[w][h];
      out += weight * shared.out[w][h][d];
    }
    a.part_out[part * kDim + i] = out;
    if (d == 0) {
      a.part_max[part + h] = most;
      a.part_sum[part + h] = sum;
    }
  }
  __syncthreads();
}

// Waits until all blocks of the kv head have called this `times` times; their earlier writes are
// then visible.
__device__ void meet(int32_t* arrivals, int times) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrivals, 1);
    const int wanted = times * static_cast<int>(gridDim.x);
    while (*reinterpret_cast<volatile int32_t*>(arrivals) < wanted) {
    }
    __threadfence();
  }
  __syncthreads();
}

struct RuleShared {
  LogSum parts[kUnitPages];
  double sums[kUnitPages], squares[kUnitPages];
  int samples[kUnitPages];
};

__device__ LogSum over_block(LogSum sum, LogSum* parts) {
  sum = sum.over_warp();
  __syncthreads();
  if (threadIdx.x % kWarpThreads == 0) parts[threadIdx.x / kWarpThreads] = sum;
  __syncthreads();
  LogSum all = parts[0];
  for (int w = 1; w < kUnitPages; ++w) all.merge(parts[w]);
  return all;
}

// How the log masses of the attended pages are distributed relative to their digests' estimates.
struct Calibration {
  float mean = 0;
  float deviation = 0;
};

__device__ Calibration calibrate(const PageAttention& a, const int32_t* order, int64_t head,
                                 int count, RuleShared& shared) {
  const PageTables& t = a.tables;
  double sum = 0, squares = 0;
  int samples = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if (PageRuleNumbers::leads(order[i], t.num_pages)) continue;
    const int64_t page = head * t.num_pages + order[i];
    const float spread = a.estimates.spread[page];
    if (spread < PageRuleNumbers::kLeastSpread) continue;
    const double k =
        static_cast<double>(a.log_mass[head * t.num_pages + i] - a.estimates.centre[page]) /
        static_cast<double>(spread);
    sum += k;
    squares += k * k;
    ++samples;
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    squares += __shfl_xor_sync(0xffffffffu, squares, mask);
    samples += __shfl_xor_sync(0xffffffffu, samples, mask);
  }
  __syncthreads();
  if (threadIdx.x % kWarpThreads == 0) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
    shared.sums[warp] = sum;
    shared.squares[warp] = squares;
    shared.samples[warp] = samples;
  }
  __syncthreads();
  sum = squares = 0;
  samples = 0;
  for (int w = 0; w < kUnitPages; ++w) {
    sum += shared.sums[w];
    squares += shared.squares[w];
    samples += shared.samples[w];
  }
  if (samples == 0) return {};
  const double mean = sum / samples;
  const double variance = max(0.0, squares / samples - mean * mean);
  return {static_cast<float>(mean), static_cast<float>(sqrt(variance))};
}

// PageRule::enough at the end of a portion, for one query head. Called by the whole block.
__device__ bool enough(const PageAttention& a, int kv_head, const HeadPages& pages, int g,
                       int portion, RuleShared& shared) {
  const PageTables& t = a.tables;
  const int count = pages.up_to(portion);
  if (count == pages.count) return true;
  if (a.first_token > 0) return false;
  if (!a.rule.proven && count < PageRuleNumbers::kSamples) return false;
  const int64_t head = static_cast<int64_t>(kv_head) * t.group + g;
  const int32_t* const order = a.order.pages + static_cast<int64_t>(kv_head) * t.num_pages;
  LogSum attended;
  if (threadIdx.x == 0 && a.tail_lse != nullptr) attended.add(a.tail_lse[head]);
  for (int u = static_cast<int>(threadIdx.x); u < pages.units_up_to(portion); u += kThreads) {
    const int64_t part = (static_cast<int64_t>(kv_head) * a.portions.num_units + u) * t.group + g;
    attended.merge({a.part_max[part] * kLn2, a.part_sum[part]});
  }
  const float log_attended = over_block(attended, shared.parts).log();
  Calibration k;
  if (!a.rule.proven) k = calibrate(a, order, head, count, shared);
  const float sought = logf(PageRuleNumbers::kSoughtPages / static_cast<float>(t.num_pages));
  LogSum rest;
  for (int i = count + static_cast<int>(threadIdx.x); i < pages.count; i += kThreads) {
    const int64_t page = head * t.num_pages + order[i];
    if (a.rule.proven) {
      rest.add(a.estimates.bound[page]);
      continue;
    }
    const float spread = a.estimates.spread[page];
    const float deviation = PageRuleNumbers::kSafety * k.deviation * spread;
    rest.add(a.estimates.centre[page] + k.mean * spread +
             fminf(deviation * deviation / 2, PageRuleNumbers::kDeviations * deviation));
    rest.add(sought + a.estimates.centre[page] + PageRuleNumbers::kSoughtK * spread);
  }
  const float error = a.rule.proven ? PageRuleNumbers::kSumError : 0;
  return over_block(rest, shared.parts).log() + error <= log_attended + a.rule.log_odds;
}

// The first portion in [begin, end) that is enough for all query heads, or -1. All threads get it.
__device__ int first_enough(const PageAttention& a, int kv_head, int begin, int end) {
  for (int portion = begin; portion < end; ++portion) {
    const int32_t* const answers =
        a.enough +
        (static_cast<int64_t>(kv_head) * a.portions.num_portions + portion) * a.tables.group;
    bool all = true;
    for (int g = 0; g < a.tables.group; ++g) {
      all = all && *reinterpret_cast<const volatile int32_t*>(answers + g) != 0;
    }
    if (all) return portion;
  }
  return -1;
}

// Computes a slice of a query head's output.
template <typename Output, int kDim>
__device__ void merge_units(const PageAttention& a, int kv_head, int g, int slice, int num_units,
                            float (&shared)[kUnitPages][kWarpThreads], RuleShared& rule) {
  const PageTables& t = a.tables;
  const int64_t head = static_cast<int64_t>(kv_head) * t.group + g;
  const int64_t first = static_cast<int64_t>(kv_head) * a.portions.num_units;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int d = slice * kWarpThreads + static_cast<int>(threadIdx.x) % kWarpThreads;
  LogSum own;
  for (int u = static_cast<int>(threadIdx.x); u < num_units; u += kThreads) {
    const int64_t part = (first + u) * t.group + g;
    own.merge({a.part_max[part] * kLn2, a.part_sum[part]});
  }
  const LogSum prompt = over_block(own, rule.parts);
  const float lse = prompt.log();
  float out = 0;
#pragma unroll 4
  for (int u = warp; u < num_units; u += kUnitPages) {
    const int64_t part = (first + u) * t.group + g;
    out += exp2f(a.part_max[part] - prompt.maximum * kLog2E) * a.part_out[part * kDim + d];
  }
  __syncthreads();
  shared[warp][d % kWarpThreads] = out;
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < kUnitPages; ++w) out += shared[w][d % kWarpThreads];
  if (num_units > 0) out *= page_scale(a, kv_head, 1) / prompt.sum;
  if (a.lse != nullptr && d == 0) a.lse[head] = lse;
  float log_all = lse;
  if (a.tail_lse != nullptr && a.tail_lse[head] != -INFINITY) {
    const float tail = a.tail_lse[head];
    const float most = fmaxf(lse, tail);
    const float of_prompt = expf(lse - most), of_tail = expf(tail - most);
    out = (of_prompt * out + of_tail * a.tail_out[head * kDim + d]) / (of_prompt + of_tail);
    log_all = most + logf(of_prompt + of_tail);
  }
  if (a.sinks != nullptr) out /= 1.0F + expf(a.sinks[head] - log_all);
  static_cast<Output*>(a.out)[head * kDim + d] = narrow<Output>(out);
}

// Updates uses, expectations and counters. A page that was read but not asked for counts as used,
// because it will be read again next time.
__device__ void account(const PageAttention& a, int kv_head, int count, int read) {
  const PageTables& t = a.tables;
  unsigned foreseen = 0;
  for (int i = static_cast<int>(threadIdx.x); i < read; i += kThreads) {
    const int64_t number =
        t.number(a.layer, kv_head, a.order.pages[static_cast<int64_t>(kv_head) * t.num_pages + i]);
    const float age = t.last[number] < 0 ? 0 : static_cast<float>(a.token - t.last[number]);
    t.heat[number] = t.heat[number] * exp2f(-age / 8.0F) + 1;
    t.last[number] = a.token;
    foreseen += i < count && t.foreseen[number] == a.token + 1 ? 1 : 0;
  }
  if (a.foreseen) {
    atomicAdd(&t.counters[static_cast<int>(PageCounter::kForeseen)],
              static_cast<unsigned long long>(foreseen));
  }
  if (threadIdx.x != 0) return;
  const auto pages = static_cast<unsigned long long>(count);
  t.expected[a.layer * t.num_kv_heads + kv_head] = count;
  a.order.attended[kv_head] = count;
  a.order.read[kv_head] = read;
  atomicAdd(&t.counters[static_cast<int>(PageCounter::kRead)], pages);
  atomicAdd(&t.counters[static_cast<int>(PageCounter::kSpared)],
            static_cast<unsigned long long>(read) - pages);
  if (a.foreseen) atomicAdd(&t.counters[static_cast<int>(PageCounter::kOfForeseen)], pages);
}

// blockIdx.y is the kv head, whose blocks share its work.
template <typename Element, typename Output, int kDim, int kHeads>
__global__ void __launch_bounds__(kThreads) attend_kernel(const __grid_constant__ PageAttention a) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& unit_shared = *reinterpret_cast<UnitShared<kDim, kHeads>*>(memory);
  __shared__ RuleShared rule;
  __shared__ float sums[kUnitPages][kWarpThreads];
  const PageTables& t = a.tables;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int block = static_cast<int>(blockIdx.x), num_blocks = static_cast<int>(gridDim.x);
  int32_t* const arrivals = a.arrivals + kv_head;
  Vector8 q[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int64_t head = static_cast<int64_t>(kv_head) * t.group + min(h, t.group - 1);
    const int element = static_cast<int>(threadIdx.x) % (kDim / kVector) * kVector;
    q[h] = load8(a.q + head * kDim + element);
  }

  const HeadPages pages{a.portions, a.order.count[kv_head]};
  const int expected = t.expected[a.layer * t.num_kv_heads + kv_head];
  const int last = pages.last_portion(a.max_pages);
  int end = pages.portion_of(expected == 0 ? kFirstPages : expected) + 1;
  if (a.first_token > 0) end = last + 1;
  int portions_done = 0, units_done = 0, enough_portion = -1, more = 1;
  for (int times = 1; enough_portion < 0; times += 2) {
    if (portions_done > last) {
      if (block == 0 && threadIdx.x == 0) a.order.attended[kv_head] = kNotEnough;
      return;
    }
    end = min(end, last + 1);
    const int units = pages.units_up_to(end - 1);
    for (int u = units_done + block; u < units; u += num_blocks) {
      attend_unit<Element, kDim, kHeads>(a, kv_head, pages, u, q, unit_shared);
    }
    meet(arrivals, times);
    const int questions = (end - portions_done) * t.group;
    for (int i = block; i < questions; i += num_blocks) {
      const int portion = portions_done + i / t.group, g = i % t.group;
      const bool answer = enough(a, kv_head, pages, g, portion, rule);
      if (threadIdx.x == 0) {
        a.enough[(static_cast<int64_t>(kv_head) * a.portions.num_portions + portion) * t.group +
                 g] = answer ? 1 : 0;
      }
    }
    meet(arrivals, times + 1);
    enough_portion = first_enough(a, kv_head, portions_done, end);
    portions_done = end;
    units_done = units;
    end += more;
    more *= 2;
  }

  const int num_units = pages.units_up_to(enough_portion);
  constexpr int kSlices = kDim / kWarpThreads;
  for (int i = block; i < t.group * kSlices; i += num_blocks) {
    merge_units<Output, kDim>(a, kv_head, i / kSlices, i % kSlices, num_units, sums, rule);
  }
  if (block == num_blocks - 1) {
    account(a, kv_head, pages.up_to(enough_portion), pages.up_to(portions_done - 1));
  }
}

template <typename Element, typename Output, int kDim, int kHeads>
void launch(const PageAttention& attention, int num_sms, cudaStream_t stream) {
  auto* const kernel = attend_kernel<Element, Output, kDim, kHeads>;
  const int bytes = static_cast<int>(sizeof(UnitShared<kDim, kHeads>));
  MR_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int blocks_a_sm = 0;
  MR_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_a_sm, kernel, kThreads,
                                                              static_cast<size_t>(bytes)));
  const int kv_heads = attention.tables.num_kv_heads;
  const int blocks = std::clamp(blocks_a_sm * (num_sms - kSparedSms) / kv_heads, 1,
                                std::max(1, attention.portions.num_units));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(kv_heads));
  PageAttention argument = attention;
  void* arguments[] = {&argument};
  MR_CUDA_CHECK(cudaLaunchCooperativeKernel(kernel, grid, dim3(kThreads), arguments,
                                            static_cast<size_t>(bytes), stream));
}

template <typename Element, typename Output, int kDim>
void launch_for_group(const PageAttention& attention, int num_sms, cudaStream_t stream) {
  const int group = attention.tables.group;
  MR_CHECK(group <= max_page_group(kDim), "{} query heads of {} of a kv head", group, kDim);
  if constexpr (max_page_group(kDim) == 4) {
    launch<Element, Output, kDim, 4>(attention, num_sms, stream);
  } else if (group == 1) {
    launch<Element, Output, kDim, 1>(attention, num_sms, stream);
  } else if (group <= 4) {
    launch<Element, Output, kDim, 4>(attention, num_sms, stream);
  } else {
    launch<Element, Output, kDim, 8>(attention, num_sms, stream);
  }
}

template <typename Element, typename Output>
void launch_for_shape(const PageAttention& attention, int num_sms, cudaStream_t stream) {
  if (attention.tables.head_dim == 256) {
    launch_for_group<Element, Output, 256>(attention, num_sms, stream);
  } else if (attention.tables.head_dim == 128) {
    launch_for_group<Element, Output, 128>(attention, num_sms, stream);
  } else {
    launch_for_group<Element, Output, 64>(attention, num_sms, stream);
  }
}

}  // namespace

void attend_pages(const PageAttention& attention, DType output, bool float8, int num_sms,
                  cudaStream_t stream) {
  dispatch_narrow_dtype(output, [&]<typename Output>(Output) {
    if (float8) {
      launch_for_shape<Float8, Output>(attention, num_sms, stream);
    } else {
      launch_for_shape<Output, Output>(attention, num_sms, stream);
    }
  });
}

}  // namespace millrace::kernels::cuda
