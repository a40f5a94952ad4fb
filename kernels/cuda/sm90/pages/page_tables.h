// SPDX-License-Identifier: Apache-2.0
// What the kernels of DevicePages (kernels/pages/device_pages.h) share: tables of all pages, which
// live as long as DevicePages, and the order of one layer's pages. All pointers are device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace millrace::kernels::cuda {

// The lowest bit of a page's place: set while its slot is being filled.
inline constexpr uint64_t kLoading = 1;

enum class PageCounter : int32_t {
  kRead,
  kSpared,
  kFromHost,
  kOfForeseen,
  kForeseen,
  kCopied,
  kSkipped,
  kCount
};

// Pages are numbered by layer, kv head and page.
struct PageTables {
  int32_t num_layers;
  int32_t num_kv_heads;
  int32_t group;  // query heads of a kv head
  int32_t head_dim;
  int32_t num_pages;  // of a layer and kv head
  int64_t num_tokens;
  int64_t page_bytes;
  int32_t num_slots;
  bool all_kept;
  const std::byte* host;         // [all pages], page-locked
  std::byte* slots;              // [num_slots]
  const float* digests;          // [all pages, 3, head_dim]
  uint64_t* place;               // [all pages] address; always 0 if not kept
  float* heat;                   // [all pages] decayed number of uses, as of `last`
  int32_t* last;                 // [all pages] token of the last use; -1: none
  int32_t* foreseen;             // [all pages] 1 + the token it was last foreseen for
  int32_t* expected;             // [layers, kv heads] number of pages that the last token needed
  int32_t* slot_page;            // [num_slots]; -1: none
  int32_t* free_slot;            // the first slot never used
  int32_t* hand;                 // the slot where the next search for slots starts
  unsigned long long* counters;  // [PageCounter]

  __host__ __device__ int64_t number(int32_t layer, int32_t kv_head, int32_t page) const {
    return (static_cast<int64_t>(layer) * num_kv_heads + kv_head) * num_pages + page;
  }
  __device__ bool is_kept(int64_t number) const { return all_kept || place[number] != 0; }
  __host__ __device__ uint64_t host_place(int64_t number) const {
    return reinterpret_cast<uint64_t>(host) + static_cast<uint64_t>(number * page_bytes);
  }
  __host__ __device__ uint64_t slot_place(int64_t slot) const {
    return reinterpret_cast<uint64_t>(slots) + static_cast<uint64_t>(slot * page_bytes);
  }
};

// The PageEstimate of each page under each query, [kv heads, group, pages].
struct PageEstimates {
  float* bound;  // null if the rule is calibrated
  float* centre;
  float* spread;
  float* rank;  // -inf: the page is not kept, and its other numbers are undefined
};

struct PageOrder {
  int32_t* pages;     // [kv heads, pages], of which the first `count` are valid
  int32_t* count;     // [kv heads]
  int32_t* attended;  // [kv heads] how many of them the rule asked for, or kNotEnough
  int32_t* read;      // [kv heads] these and the pages read ahead of the rule's answer
};
// The pages that may be read were too few: the step wrote no output.
inline constexpr int32_t kNotEnough = -1;

// Portions, cut into units of at most kUnitPages, by position in an order of all pages. If an order
// is shorter, its last portion ends where the order ends.
inline constexpr int kUnitPages = 4;
struct PagePortions {
  const int32_t* ends;        // [num_portions] pages up to the portion's end
  const int32_t* unit_ends;   // [num_portions] units up to there
  const int32_t* unit_pages;  // [num_units + 1] pages before the unit
  int32_t num_portions;
  int32_t num_units;
};

}  // namespace millrace::kernels::cuda
