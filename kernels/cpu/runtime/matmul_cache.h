// SPDX-License-Identifier: Apache-2.0
// Matrix products by oneDNN. No other header or source file uses oneDNN. Works with its 2.x and 3.x
// interfaces, which differ in how a primitive is described.
#pragma once

#include <cstdint>
#include <memory>

#include "common/dtype.h"

namespace millrace::kernels::cpu {

// What a matmul primitive is compiled for: everything about a product except the addresses.
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  DType dtype = DType::kFloat32;  // of a and b
  bool has_bias = false;
  bool accumulate = false;

  bool operator==(const MatmulShape&) const = default;
};

struct MatmulOperands {
  const void* a = nullptr;      // [m, k], rows a_stride apart
  const void* b = nullptr;      // [n, k], rows b_stride apart
  const float* bias = nullptr;  // [n] when has_bias
  float* c = nullptr;           // [m, n], rows c_stride apart
};

// Whether oneDNN multiplies bfloat16 in AMX tiles here, many times as fast as float32.
bool multiplies_in_tiles();

// An LRU cache of compiled primitives, by shape. Compiling takes about a millisecond (code
// generation), running a small product some microseconds.
class MatmulCache {
 public:
  explicit MatmulCache(int capacity);
  ~MatmulCache();

  // Throws dnnl::error if oneDNN has no implementation at all.
  void run(const MatmulShape& shape, const MatmulOperands& operands);

  int64_t num_compiled() const { return num_compiled_; }

 private:
  struct State;
  struct Entry;

  Entry& find_or_compile(const MatmulShape& shape);

  std::unique_ptr<State> state_;
  int capacity_;
  int64_t num_compiled_ = 0;
};

}  // namespace millrace::kernels::cpu
