// SPDX-License-Identifier: Apache-2.0
// The assignment of slots to pages. A page's place says where to read it. A copy writes the slot
// first and the place afterwards, so that a concurrent reader always finds the page at one of the
// two. A slot gets a new page only if no running step can have read the old place; the caller names
// the layers whose slots must stay.

#include <algorithm>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/pages/block_sort.cuh"
#include "kernels/cuda/sm90/pages/page_launches.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kAdmitThreads = 1024;
// One search for the least useful slots looks at this many, from where the last search ended. With
// 32 layers, the searches of one token see 4 GiB of 32 KiB slots once.
constexpr int kWindow = 4096;
constexpr float kHalfLife = 8;

// While steps run, their kernels wait for the multiprocessors that copies occupy: with six blocks a
// 16 ms step of an 8B model took 1.1 ms longer than with two
// (bench/results/h100/decode-device-2026-11-25.txt).
constexpr int kCopyBlocks = 2;
// While nothing else runs: as many as it takes to saturate the bus.
constexpr int kFillBlocks = 6;
constexpr int kCopyThreads = 1024;

__device__ uint64_t load_place(const PageTables& t, int64_t number) {
  return *reinterpret_cast<const volatile uint64_t*>(t.place + number);
}
__device__ void store_place(const PageTables& t, int64_t number, uint64_t place) {
  *reinterpret_cast<volatile uint64_t*>(t.place + number) = place;
}

__device__ int32_t layer_of(const PageTables& t, int64_t number) {
  return static_cast<int32_t>(number / (static_cast<int64_t>(t.num_kv_heads) * t.num_pages));
}

// The page's uses, decayed to `token`, the one that its layer was last computed for.
__device__ float worth(const PageTables& t, int64_t number, int32_t token) {
  const int32_t last = t.last[number];
  if (last < 0) return 0;
  return t.heat[number] * exp2f(-static_cast<float>(max(0, token - last)) / kHalfLife);
}

// Pages at the beginning of the order that have no slot. Returns how many.
__device__ int find_candidates(const PageAdmission& a, int32_t* candidates, int* count) {
  const PageTables& t = a.tables;
  const auto wanted = [&](int kv_head) {
    if (!a.foreseen) return a.order.read[kv_head];
    // Some more than the last token needed: a predicted order differs a little from the layer's
    // own.
    const int expected = t.expected[a.layer * t.num_kv_heads + kv_head];
    return min(a.order.count[kv_head], expected + max(2, expected / 8));
  };
  int most = 0;
  for (int h = 0; h < t.num_kv_heads; ++h) most = max(most, wanted(h));
  // Heads take turns, each with its first pages first.
  for (int base = 0; base < most * t.num_kv_heads; base += kAdmitThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const int kv_head = i % t.num_kv_heads, position = i / t.num_kv_heads;
    if (position < most && position < wanted(kv_head)) {
      const int32_t page = a.order.pages[kv_head * t.num_pages + position];
      const int64_t number = t.number(a.layer, kv_head, page);
      if (a.foreseen) t.foreseen[number] = a.token + 1;
      if (load_place(t, number) == t.host_place(number)) {
        const int at = atomicAdd(count, 1);
        if (at < kMaxAdmitted) candidates[at] = static_cast<int32_t>(number);
      }
    }
    __syncthreads();
  }
  return min(*count, kMaxAdmitted);
}

// Sorts the slots of a window, the least useful first. Slots that must stay come last, as ~0.
__device__ void rank_slots(const PageAdmission& a, int32_t hand, int window, uint64_t* keys) {
  const PageTables& t = a.tables;
  for (int i = static_cast<int>(threadIdx.x); i < kWindow; i += kAdmitThreads) {
    keys[i] = ~uint64_t{0};
    if (i >= window) continue;
    const int32_t slot = (hand + i) % t.num_slots;
    const int32_t number = t.slot_page[slot];
    if (number < 0 || load_place(t, number) != t.slot_place(slot)) continue;
    const int32_t layer = layer_of(t, number);
    const int32_t ahead = (layer - a.first_kept_layer + t.num_layers) % t.num_layers;
    if (ahead < a.num_kept_layers) continue;
    const float value = worth(t, number, layer < a.layer ? a.token : a.token - 1);
    keys[i] = uint64_t{__float_as_uint(value)} << 32 | static_cast<uint32_t>(slot);
  }
  block_sort(keys, kWindow);
}

__global__ void __launch_bounds__(kAdmitThreads)
    admit_kernel(const __grid_constant__ PageAdmission a) {
  __shared__ uint64_t keys[kWindow];
  __shared__ int32_t candidates[kMaxAdmitted];
  __shared__ int count, taken;
  const PageTables& t = a.tables;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) count = taken = 0;
  __syncthreads();
  const int wanted = find_candidates(a, candidates, &count);
  if (wanted == 0) return;
  if (*reinterpret_cast<volatile int32_t*>(&a.list->count) != 0) {
    if (thread == 0) atomicAdd(&t.counters[static_cast<int>(PageCounter::kSkipped)], 1ULL);
    return;
  }
  const int32_t first_free = *t.free_slot, hand = *t.hand;
  const int num_free = min(wanted, t.num_slots - first_free);
  if (num_free < wanted) rank_slots(a, hand, min(kWindow, t.num_slots), keys);
  __syncthreads();
  if (thread < wanted) {
    const int32_t number = candidates[thread];
    int32_t slot = -1;
    if (thread < num_free) {
      slot = first_free + thread;
    } else if (thread - num_free < kWindow) {
      const uint64_t key = keys[thread - num_free];
      // A foreseen page is expected to be read once more.
      const float value = worth(t, number, a.token) + (a.foreseen ? 1 : 0);
      if (key != ~uint64_t{0} && __uint_as_float(static_cast<uint32_t>(key >> 32)) < value) {
        slot = static_cast<int32_t>(key);
        const int32_t old = t.slot_page[slot];
        store_place(t, old, t.host_place(old));
      }
    }
    if (slot >= 0) {
      t.slot_page[slot] = number;
      store_place(t, number, t.host_place(number) | kLoading);
      const int at = atomicAdd(&taken, 1);
      a.list->pages[at] = number;
      a.list->slots[at] = slot;
    }
  }
  __syncthreads();
  if (thread != 0) return;
  *t.free_slot = first_free + num_free;
  if (num_free < wanted) *t.hand = (hand + min(kWindow, t.num_slots)) % t.num_slots;
  a.list->number = a.list_number;
  a.list->count = taken;
  atomicAdd(&t.counters[static_cast<int>(PageCounter::kCopied)],
            static_cast<unsigned long long>(taken));
}

// Copies `count` pages, divided among all blocks; a block copies two at a time. `page_of` and
// `slot_of` give the number and the slot of each.
template <typename PageOf, typename SlotOf>
__device__ void copy_into_slots(const PageTables& t, int count, PageOf page_of, SlotOf slot_of) {
  const int64_t vectors = t.page_bytes / static_cast<int64_t>(sizeof(uint4));
  for (int i = 2 * static_cast<int>(blockIdx.x); i < count; i += 2 * static_cast<int>(gridDim.x)) {
    const int pages = min(2, count - i);
    constexpr int kLoads = 4;
    for (int64_t base = 0; base < pages * vectors; base += kLoads * kCopyThreads) {
      uint4 data[kLoads];
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int64_t at = base + l * kCopyThreads + threadIdx.x;
        if (at >= pages * vectors) continue;
        const int64_t number = page_of(i + static_cast<int>(at / vectors));
        data[l] = reinterpret_cast<const uint4*>(t.host_place(number))[at % vectors];
      }
#pragma unroll
      for (int l = 0; l < kLoads; ++l) {
        const int64_t at = base + l * kCopyThreads + threadIdx.x;
        if (at >= pages * vectors) continue;
        const int64_t slot = slot_of(i + static_cast<int>(at / vectors));
        reinterpret_cast<uint4*>(t.slot_place(slot))[at % vectors] = data[l];
      }
    }
    __threadfence();
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < pages) {
      const int at = i + static_cast<int>(threadIdx.x);
      store_place(t, page_of(at), t.slot_place(slot_of(at)));
    }
  }
}

__global__ void __launch_bounds__(kCopyThreads)
    copy_kernel(const PageTables t, const AdmittedPages* list, int32_t list_number) {
  if (list->number != list_number) return;
  copy_into_slots(
      t, list->count, [list](int i) { return list->pages[i]; },
      [list](int i) { return list->slots[i]; });
}

__global__ void __launch_bounds__(kCopyThreads)
    fill_kernel(const PageTables t, int first_slot, int count) {
  copy_into_slots(
      t, count, [&](int i) { return t.slot_page[first_slot + i]; },
      [first_slot](int i) { return first_slot + i; });
}

// A list that has been filled again since belongs to a later admission.
__global__ void empty_kernel(AdmittedPages* list, int32_t list_number) {
  if (list->number == list_number) list->count = 0;
}

}  // namespace

void admit_pages(const PageAdmission& admission, cudaStream_t stream) {
  admit_kernel<<<1, kAdmitThreads, 0, stream>>>(admission);
  MR_CUDA_CHECK_LAUNCH();
}

void copy_admitted(const PageTables& tables, AdmittedPages* list, int32_t list_number,
                   cudaStream_t stream) {
  copy_kernel<<<kCopyBlocks, kCopyThreads, 0, stream>>>(tables, list, list_number);
  MR_CUDA_CHECK_LAUNCH();
  empty_kernel<<<1, 1, 0, stream>>>(list, list_number);
  MR_CUDA_CHECK_LAUNCH();
}

void fill_slots(const PageTables& tables, int32_t first_slot, int32_t end_slot,
                cudaStream_t stream) {
  if (first_slot == end_slot) return;
  fill_kernel<<<kFillBlocks, kCopyThreads, 0, stream>>>(tables, first_slot, end_slot - first_slot);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
