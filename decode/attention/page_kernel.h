// SPDX-License-Identifier: Apache-2.0
// What progressive attention computes on pages, wherever they lie in memory: the operations that a
// device has a kernel for. CpuPageKernel is one; a GPU's takes the same items as one launch.
//
// An item is one kv head of a layer with the query heads that read it. Its pointers are memory of
// the kernel's device. The items of a call share nothing that is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/pages/page_rule.h"

namespace millrace::decode {

struct EstimateItem {
  const float* q = nullptr;  // [num_heads, head_dim]
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  float scale = 0;
  const float* digests =
      nullptr;  // [num_pages, 3, head_dim]: min, max, radius (kernels/api/digest.h)
  int64_t num_pages = 0;
  int64_t num_tokens = 0;                      // of all pages; the last one may be short
  kernels::PageEstimate* estimates = nullptr;  // [num_heads, num_pages]
};

// K [kPageTokens, head_dim], then V. `num_tokens` rows count, starting with `first_token`.
struct PageRows {
  const std::byte* k_then_v = nullptr;
  int64_t num_tokens = 0;
  int64_t first_token = 0;
};

// The softmax over what was attended so far, carried on as in flash attention: weights are relative
// to exp(max).
struct SoftmaxState {
  float* max = nullptr;  // [num_heads]; -inf: nothing yet
  float* sum = nullptr;  // [num_heads]
  float* out = nullptr;  // [num_heads, head_dim], not yet divided by sum
};

struct AttendItem {
  const float* q = nullptr;  // [num_heads, head_dim]
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  float scale = 0;
  DType dtype = DType::kFloat32;    // of the pages
  std::span<const PageRows> pages;  // host memory
  SoftmaxState state;
  float* log_mass = nullptr;  // [num_heads] for each page, side by side
};

// One thread at a time. head_dim is a multiple of 16.
class PageKernel {
 public:
  virtual ~PageKernel() = default;
  virtual void estimate(std::span<const EstimateItem> items) = 0;
  virtual void attend(std::span<const AttendItem> items) = 0;
};

}  // namespace millrace::decode
