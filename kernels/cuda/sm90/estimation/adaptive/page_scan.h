// SPDX-License-Identifier: Apache-2.0
// Computes the masses of the pages that a filter has left for sampled rows (AdaptiveParams).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/estimation/adaptive/key_pages.h"
#include "kernels/cuda/sm90/estimation/adaptive/page_masses.h"
#include "kernels/cuda/sm90/estimation/adaptive/scan_batch.h"

namespace millrace::kernels::cuda {

struct PageScanMaps {
  CUtensorMap keys;  // KeyPages::keys in boxes of a page, a plane per kv head
  CUtensorMap rows;  // SampledRows::quantised in boxes of kUnitRows, a plane per head
};

// Writes masses[num_heads, num_rows, page_stride] where `scanned` says.
void launch_page_scan(const ScanBatch& batch, const KeyPages& keys, const PageScanMaps& maps,
                      const ScannedPages& scanned, MassSteps* masses, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
