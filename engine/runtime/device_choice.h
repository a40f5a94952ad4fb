// SPDX-License-Identifier: Apache-2.0
// Which device a rank computes on, from --device and what the machine has.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "common/result.h"
#include "engine/ranks/machine_share.h"
#include "kernels/api/device.h"

namespace millrace::engine {

struct DeviceChoice {
  enum class Kind {
    kAuto,  // a GPU where the build, the machine and the compute dtype allow it, else the CPU
    kCpu,
    kCuda,
  };
  Kind kind = Kind::kAuto;
  int index = -1;  // of the GPU; -1: the ranks of a machine take its GPUs in turn
};

// "auto", "cpu", "cuda" or "cuda:N".
Result<DeviceChoice> parse_device_choice(std::string_view text);

// `dtype`: what the rank is told to compute in, if anything. kUnsupported where the device cannot.
Result<std::unique_ptr<kernels::Device>> make_rank_device(const DeviceChoice& choice,
                                                          std::optional<DType> dtype,
                                                          const CoreShare& cores);

// What a rank computes in: `wanted`, or on a GPU the dtype that the checkpoint's matrices are
// `stored` in, float16 or bfloat16 (bfloat16 for float32 ones). None on a CPU, where the faster one
// is chosen (dtype_times.h).
std::optional<DType> compute_dtype_on(const kernels::DeviceInfo& info, std::optional<DType> wanted,
                                      DType stored);

}  // namespace millrace::engine
