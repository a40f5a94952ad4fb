// SPDX-License-Identifier: Apache-2.0
// What a gated MLP makes of a gate g and its up u (Shazeer 2020, "GLU Variants Improve Transformer").
#pragma once

namespace millrace::kernels {

struct Activation {
  enum class Kind {
    kSilu,      // g sigmoid(g) u: SwiGLU
    kGeluTanh,  // gelu(g) u in tanh's approximation (Hendrycks and Gimpel 2016, eq. 2): GeGLU
    kClamped,   // h sigmoid(alpha h) (v + 1), h = min(g, limit), v = u within +-limit: gpt-oss
  };
  Kind kind = Kind::kSilu;
  float alpha = 1;
  float limit = 0;

  bool operator==(const Activation&) const = default;
};

}  // namespace millrace::kernels
