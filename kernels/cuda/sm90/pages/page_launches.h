// Launches of the kernels behind DevicePages, in the order of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/dtype.h"
#include "kernels/cuda/sm90/pages/page_tables.h"
#include "kernels/pages/page_rule.h"

namespace millrace::kernels::cuda {

// As many pages of a kv head as are put in order: their keys fill a multiprocessor's shared memory.
inline constexpr int64_t kMaxOrderedPages = 16384;
// Query heads of a kv head that pages are attended under. No model's heads of 256 are more.
constexpr int32_t max_page_group(int32_t head_dim) {
  return head_dim == 256 ? 4 : 8;
}

// Of a layer's pages that are kept, under q [kv heads * group, head_dim]. head_dim 64, 128 or 256. Zeroes
// `arrivals` [kv heads], where given.
void estimate_pages(const PageTables& tables, int32_t layer, const float* q, float scale,
                    const PageEstimates& estimates, int32_t* arrivals, cudaStream_t stream);
// The same pages. `tail_lse` [kv heads * group] or null.
void order_pages(const PageTables& tables, const PageEstimates& estimates, const float* tail_lse,
                 const PageOrder& order, cudaStream_t stream);

// Of a layer with a window, without estimates: its pages from `first_page` on that are kept, ascending. Zeroes `arrivals`.
void list_pages(const PageTables& tables, int32_t layer, int32_t first_page, const PageOrder& order,
                int32_t* arrivals, cudaStream_t stream);

// Progressive attention of a layer: one launch whose blocks of a kv head wait for each other.
struct PageAttention {
  PageTables tables;
  PageEstimates estimates;
  PageOrder order;
  PagePortions portions;
  PageRuleChoice rule;
  int32_t layer = 0;
  int32_t token = 0;
  // Where it is not 0, all tokens from it on are attended to: the order is one of list_pages.
  int64_t first_token = 0;
  bool foreseen = false;  // counts what was
  int32_t max_pages = 0;  // of a kv head: the order's first that may be read
  float scale = 0;        // of products of q and K
  // [kv heads, 2] of what pages have of K, and of V; null: 1.
  const float* page_scales = nullptr;
  const float* q = nullptr;
  const float* tail_lse = nullptr;  // or null, with tail_out
  const float* tail_out = nullptr;
  const float* sinks = nullptr;  // [kv heads * group] or null
  void* out = nullptr;
  float* lse = nullptr;  // or null
  // Scratch:
  float* part_max = nullptr;    // [kv heads, units, group] of scores, times log2(e)
  float* part_sum = nullptr;    // the same
  float* part_out = nullptr;    // [kv heads, units, group, head_dim]
  float* log_mass = nullptr;    // [kv heads, group, pages], by position in the order
  int32_t* enough = nullptr;    // [kv heads, portions, group]
  int32_t* arrivals = nullptr;  // [kv heads], zero
};
// Pages are in the output's dtype or, if `float8`, in e4m3.
void attend_pages(const PageAttention& attention, DType output, bool float8, int num_sms,
                  cudaStream_t stream);

// What one admission chose, until it is copied.
inline constexpr int kMaxAdmitted = 256;
struct AdmittedPages {
  int32_t count;   // 0: copied
  int32_t number;  // of the admission that filled it
  int32_t pages[kMaxAdmitted];
  int32_t slots[kMaxAdmitted];
};

// Slots for pages of `layer` that have none: the first of an order. `list` gets what is to be copied,
// unless it still has what was to be copied before.
struct PageAdmission {
  PageTables tables;
  int32_t layer = 0;
  int32_t token = 0;
  bool foreseen = false;  // pages that are expected, else those read
  PageOrder order;
  // Layers whose pages keep their slots: steps may be reading them.
  int32_t first_kept_layer = 0;
  int32_t num_kept_layers = 0;
  AdmittedPages* list = nullptr;
  int32_t list_number = 0;  // above 0, another each time
};
void admit_pages(const PageAdmission& admission, cudaStream_t stream);
// Behind the admission of that number: fills the slots, maps the pages to them, and empties the list. Nothing
// where that admission left the list alone: another's is no business of this copy, which may run beside it.
void copy_admitted(const PageTables& tables, AdmittedPages* list, int32_t list_number,
                   cudaStream_t stream);

// Where every page that is kept has a slot and slot_page says which: fills slots [first, end), and maps their
// pages to them.
void fill_slots(const PageTables& tables, int32_t first_slot, int32_t end_slot,
                cudaStream_t stream);

}  // namespace millrace::kernels::cuda
