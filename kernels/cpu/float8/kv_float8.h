// SPDX-License-Identifier: Apache-2.0
// Encodes K and V as 8-bit floats, and decodes them (kernels/api/float8_params.h). Bitwise the same for
// any number of threads and any instruction set.
#pragma once

#include "kernels/api/float8_params.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

void float8_encode(const Float8EncodeParams& params, const Context& context);
void float8_decode(const Float8DecodeParams& params, const Context& context);

}  // namespace millrace::kernels::cpu
