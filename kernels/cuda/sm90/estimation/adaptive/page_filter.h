// SPDX-License-Identifier: Apache-2.0
// Decides which far pages are scanned for each sampled row (the filter of AdaptiveParams).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/estimation/adaptive/key_pages.h"
#include "kernels/cuda/sm90/estimation/adaptive/page_masses.h"
#include "kernels/cuda/sm90/estimation/adaptive/scan_batch.h"

namespace millrace::kernels::cuda {

// Tensor maps of KeyMoments, a plane per kv head: centres and spreads in boxes of kGroupPages.
struct MomentMaps {
  CUtensorMap centres;
  CUtensorMap spreads;
};

struct PageFilterMaps {
  MomentMaps pages;
  MomentMaps spans;     // not read if there are none
  CUtensorMap rows;     // SampledRows::quantised in boxes of kUnitRows, a plane per head
  CUtensorMap squares;  // SampledRows::squares likewise
};

// Writes `scanned` for all rows and units, and the groups of pages that one of a unit's rows sees.
void launch_page_filter(const ScanBatch& batch, const KeyPages& keys, const KeptMass* kept,
                        const PageFilterMaps& maps, const ScannedPages& scanned,
                        cudaStream_t stream);

}  // namespace millrace::kernels::cuda
