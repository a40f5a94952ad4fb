// The oracle of the adaptive pattern: its rule (kernels::AdaptiveRule) applied to what it estimates.
//
// The block lists of build_adaptive with nothing estimated: the mass of a page is the exact sum over
// all of its keys that the row may see, and as many rows of a tile are heard as wished, all of them
// if sampled_rows is kTileRows, else rows at even steps. Kept pages, the rule, the union over rows
// and the index's limits are the pattern's. What this loses, no better estimate would have kept.
#pragma once

#include "kernels/api/estimation.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::bench {

// On host memory. Tiles that run densely as a prompt's last ones get everything without a look. The
// lists do not depend on the number of threads; between instruction sets a mass may round
// differently, and a page move where it decides.
void build_exact(const kernels::AdaptiveParams& params, const kernels::cpu::Context& context);

}  // namespace millrace::bench
