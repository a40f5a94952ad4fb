// SPDX-License-Identifier: Apache-2.0
// The default backend: every operation runs on the CPU with OpenMP, GEMM through oneDNN, attention
// by our own kernels in the widest vectors that the machine has (chosen at run time).
#pragma once

#include <memory>

#include "kernels/api/device.h"

namespace millrace::kernels {

struct CpuDeviceOptions {
  // Threads of this device's parallel regions. Ranks that share a machine divide its cores
  // (engine/ranks/machine_share.h).
  int num_threads = 1;
};

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

}  // namespace millrace::kernels
