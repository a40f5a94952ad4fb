// SPDX-License-Identifier: Apache-2.0
// The oracle of the adaptive pattern: its rule (kernels::AdaptiveRule), applied to exact masses
// instead of estimates.
//
// It builds the block lists of build_adaptive without estimation. The mass of a page is the exact
// sum over all of its keys that the row may see. The rule can be applied to any number of rows of a
// tile: all of them if sampled_rows is kTileRows, otherwise rows at even steps. Kept pages, the
// rule, the union over rows and the index's limits are the pattern's. No better estimate could keep
// what this loses.
#pragma once

#include "kernels/api/estimation.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::bench {

// Runs in host memory. Tiles that run densely because they are a prompt's last get all pages
// without a look at their masses. The lists do not depend on the number of threads. Between
// instruction sets a mass may round differently, and change which pages are chosen.
void build_exact(const kernels::AdaptiveParams& params, const kernels::cpu::Context& context);

}  // namespace millrace::bench
