// SPDX-License-Identifier: Apache-2.0
// Scans the pages that each tile keeps anyway, for its sampled rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/estimation/adaptive/key_pages.h"
#include "kernels/cuda/sm90/estimation/adaptive/page_masses.h"
#include "kernels/cuda/sm90/estimation/adaptive/scan_batch.h"

namespace millrace::kernels::cuda {

// Writes kept[num_heads, num_rows]; nothing for rows that a short tile lacks.
void launch_kept_mass(const ScanBatch& batch, const KeyPages& keys, KeptMass* kept,
                      cudaStream_t stream);

}  // namespace millrace::kernels::cuda
