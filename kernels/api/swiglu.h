// SPDX-License-Identifier: Apache-2.0
// The gated half of an MLP.
#pragma once

#include "kernels/api/activation.h"
#include "kernels/api/matrix.h"

namespace millrace::kernels {

// out = activation(a gate^T, a up^T)
struct SwigluParams {
  ConstMatrix a;        // [m, k], in the compute dtype
  ConstMatrix gate_up;  // [2 n, k], the rows of gate, then those of up; the dtype of a
  Activation activation;
  // [m, 2 n], float32: scratch for the products, used only by devices that do not fuse the operation
  // (DeviceInfo::fuses_swiglu).
  float* products = nullptr;
  Matrix out;  // [m, n], the dtype of a
};

}  // namespace millrace::kernels
