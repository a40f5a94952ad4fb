// SPDX-License-Identifier: Apache-2.0
// Layers and caches in 8-bit floats. Products are computed only where DeviceInfo::float8_products;
// float8_encode and float8_decode everywhere.
#pragma once

#include "kernels/api/experts.h"
#include "kernels/api/float8_params.h"

namespace millrace::kernels {

class Float8Operations {
 public:
  virtual ~Float8Operations() = default;

  virtual void float8_quantize(const Float8QuantizeParams& params) = 0;
  virtual void float8_rms_norm(const Float8RmsNormParams& params) = 0;
  virtual void float8_gemm(const Float8GemmParams& params) = 0;
  virtual void float8_swiglu(const Float8SwigluParams& params) = 0;
  virtual void float8_experts(const Float8ExpertsParams& params) = 0;
  virtual void float8_encode(const Float8EncodeParams& params) = 0;
  virtual void float8_decode(const Float8DecodeParams& params) = 0;
  // A float8_decode() for each piece, unless a device overrides it.
  virtual void float8_decode_pieces(const Float8DecodePiecesParams& params);
};

}  // namespace millrace::kernels
