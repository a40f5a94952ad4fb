// SPDX-License-Identifier: Apache-2.0
// The obvious float32 loops with the contracts of kernels/api. Their error is the measure for an
// implementation (docs/numerics.md). Inputs and outputs are float32; gemm also reads bfloat16 and
// float16.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/gemm.h"

namespace millrace::kernels::naive {

void rms_norm(const RmsNormParams& params);
float activated(const Activation& activation, float gate, float up);
void activate(const ActivateParams& params);
// As Hugging Face computes it.
void rope_qkv(const RopeQkvParams& params);
// One sum per element, in order.
void gemm(const GemmParams& params);
void decode_attention(const DecodeAttentionParams& params);

}  // namespace millrace::kernels::naive
