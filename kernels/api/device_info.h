// SPDX-License-Identifier: Apache-2.0
// What a device is and where its limits are.
#pragma once

#include <cstdint>
#include <string>

#include "common/dtype.h"
#include "kernels/api/float8_params.h"

namespace millrace::kernels {

// What sparse attention by columns, bands or block lists costs on a device, relative to dense attention.
struct SparseCost {
  // Speed per computed (query, key) pair, as a share of the dense kernel's. H100: 428 of 593 TFLOP/s.
  double speed = 0.7;
  // Building the lists takes a fixed time, as long as dense attention over this many tokens. H100:
  // 0.1 ms for a layer of 32 heads, nearly all of it launches.
  double launch_tokens = 2600;
  // It also takes as long as dense attention of this many rows.
  double rows = 0;
};

struct DeviceInfo {
  std::string name;  // "cpu (2 threads, avx512_bf16)"
  // Identifies the device to all processes of the machine, whatever number each process sees it
  // under. Empty on a CPU: a machine has one.
  std::string id;
  int num_threads = 0;  // CPU only
  // Dtypes that weights, K and V may have besides bfloat16.
  bool float32_compute = true;
  bool float16_compute = false;
  bool host_memory = true;  // the host may read and write device memory
  // If the compute dtype is bfloat16, products that an element-wise operation reads are bfloat16 too:
  // half the bytes for a memory-bound operation.
  bool narrow_projections = false;
  bool fuses_swiglu = false;  // needs no room for the products
  // experts() has the rows of all experts in its scratch memory at once; those of each expert begin at a
  // multiple of this. 0: it holds one expert's rows at a time. See expert_scratch_rows.
  int32_t expert_row_step = 0;
  bool float8_products = false;  // kernels/api/float8_params.h
  // Widths of products of 8-bit floats must be multiples of this.
  int32_t float8_width_step = kFloat8WidthStep;
  // Limits of the operations: head dimensions, widths of hidden states and of a rank's part of an
  // MLP or an expert, tokens of a prompt under any index.
  int32_t head_dim_step = 16;
  bool doubling_head_dims = false;  // only power-of-two multiples of head_dim_step
  int32_t max_head_dim = 256;
  int32_t rotary_dim_step = 2;  // of the number of rotated elements of a head
  int32_t width_step = 1;
  int32_t max_hidden_size = 1 << 20;
  int64_t max_tokens = int64_t{1} << 30;
  int64_t gemm_rows = 1024;  // best number of rows for one product
  SparseCost sparse_cost;
  // The most device memory that an operation allocates temporarily for prompts of which one kv head's keys, in int8,
  // have at most scratch_key_bytes. What they have beyond comes on top, and a twentieth of that for their pages.
  int64_t scratch_bytes = 0;
  int64_t scratch_key_bytes = INT64_MAX;

  bool computes_in(DType dtype) const;
  // The smallest supported head dimension that is at least `head_dim`, or else the largest supported.
  int32_t head_dim_from(int32_t head_dim) const;
  // The dtype of products that an element-wise operation reads. Never float16, whose largest value is
  // 65,504: some models have larger gates and biased keys, although their activations and rotated keys fit.
  DType projection_dtype(DType compute_dtype) const;
};

}  // namespace millrace::kernels
