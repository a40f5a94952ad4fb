// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels of DevicePages, in the order in which a step uses them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/dtype.h"
#include "kernels/cuda/sm90/pages/page_tables.h"
#include "kernels/pages/page_rule.h"

namespace millrace::kernels::cuda {

// The most pages of a kv head that can be ordered: their keys fill a multiprocessor's shared
// memory.
inline constexpr int64_t kMaxOrderedPages = 16384;
// The most query heads of a kv head. No model with a head dimension of 256 has more.
constexpr int32_t max_page_group(int32_t head_dim) {
  return head_dim == 256 ? 4 : 8;
}

// Estimates a layer's kept pages under q [kv heads * group, head_dim]. head_dim: 64, 128 or 256.
// Zeroes `arrivals` [kv heads] unless it is null.
void estimate_pages(const PageTables& tables, int32_t layer, const float* q, float scale,
                    const PageEstimates& estimates, int32_t* arrivals, cudaStream_t stream);
// Orders the same pages. `tail_lse`: [kv heads * group] or null.
void order_pages(const PageTables& tables, const PageEstimates& estimates, const float* tail_lse,
                 const PageOrder& order, cudaStream_t stream);

// For a layer with a window, without estimates: its kept pages from `first_page` on, ascending.
// Zeroes `arrivals`.
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
  // If not 0, all tokens from this one on are attended to: the order comes from list_pages.
  int64_t first_token = 0;
  bool foreseen = false;  // the layer was foreseen: count the pages that were
  int32_t max_pages = 0;  // of each kv head, only the first so many of the order may be read
  float scale = 0;        // of products of q and K
  // [kv heads, 2] scales of the pages' K and V; null: 1.
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
  int32_t* arrivals = nullptr;  // [kv heads], zeroed before the launch
};
// Pages have the output's dtype or, if `float8`, are e4m3.
void attend_pages(const PageAttention& attention, DType output, bool float8, int num_sms,
                  cudaStream_t stream);

// The pages and slots that one admission chose, until they are copied.
inline constexpr int kMaxAdmitted = 256;
struct AdmittedPages {
  int32_t count;   // 0: copied
  int32_t number;  // of the admission that filled the list
  int32_t pages[kMaxAdmitted];
  int32_t slots[kMaxAdmitted];
};

// Finds slots for pages of `layer` that have none, the first pages of the order first, and adds
// them to `list` for copying. No slots are given if the list still has pages of an earlier
// admission.
struct PageAdmission {
  PageTables tables;
  int32_t layer = 0;
  int32_t token = 0;
  bool foreseen = false;  // admits pages that are expected; otherwise the pages read
  PageOrder order;
  // The pages of these layers keep their slots, because steps may be reading them.
  int32_t first_kept_layer = 0;
  int32_t num_kept_layers = 0;
  AdmittedPages* list = nullptr;
  int32_t list_number = 0;  // above 0, different each time
};
void admit_pages(const PageAdmission& admission, cudaStream_t stream);
// Runs after the admission with this number: fills the slots, maps the pages to them and empties
// the list. Does nothing if that admission did not fill the list: its contents then belong to
// another admission, whose copy may be running concurrently.
void copy_admitted(const PageTables& tables, AdmittedPages* list, int32_t list_number,
                   cudaStream_t stream);

// For caches in which every kept page has a slot, named by slot_page: fills slots [first_slot,
// end_slot) and maps their pages to them.
void fill_slots(const PageTables& tables, int32_t first_slot, int32_t end_slot,
                cudaStream_t stream);

}  // namespace millrace::kernels::cuda
