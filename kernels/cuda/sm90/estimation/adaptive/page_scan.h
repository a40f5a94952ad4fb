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

// Writes masses[num_heads, num_rows, page_stride] where `scanned` says. `key_map`: KeyPages::keys in boxes of a page,
// a plane per kv head.
void launch_page_scan(const ScanBatch& batch, const KeyPages& keys, const CUtensorMap& key_map,
                      const ScannedPages& scanned, MassSteps* masses, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
