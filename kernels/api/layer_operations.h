// SPDX-License-Identifier: Apache-2.0
// What the layers of a model compute. Shapes and dtypes stand with each operation's parameters.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/experts.h"
#include "kernels/api/gemm.h"
#include "kernels/api/swiglu.h"

namespace millrace::kernels {

class LayerOperations {
 public:
  virtual ~LayerOperations() = default;

  virtual void embed(const EmbedParams& params) = 0;
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void qkv_squares(const QkvSquaresParams& params) = 0;
  virtual void rope_qkv(const RopeQkvParams& params) = 0;
  virtual void add(const AddParams& params) = 0;
  virtual void gemm(const GemmParams& params) = 0;
  virtual void swiglu(const SwigluParams& params) = 0;
  virtual void route(const RouteParams& params) = 0;
  virtual void experts(const ExpertsParams& params) = 0;
  virtual void attention(const AttentionParams& params) = 0;
  virtual void decode_attention(const DecodeAttentionParams& params) = 0;
};

}  // namespace millrace::kernels
