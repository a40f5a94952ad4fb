// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/device_choice.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"

namespace millrace::engine {

namespace {

constexpr std::string_view kCudaPrefix = "cuda:";

Result<std::unique_ptr<kernels::Device>> make_gpu(const DeviceChoice& choice,
                                                  const CoreShare& cores) {
  const int num_gpus = std::max(1, kernels::num_cuda_devices());
  return kernels::make_cuda_device(
      {.index = choice.index < 0 ? cores.local_rank % num_gpus : choice.index});
}

}  // namespace

Result<DeviceChoice> parse_device_choice(std::string_view text) {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return DeviceChoice{.kind = Kind::kAuto};
  if (text == "cpu") return DeviceChoice{.kind = Kind::kCpu};
  if (text == "cuda") return DeviceChoice{.kind = Kind::kCuda};
  DeviceChoice choice{.kind = Kind::kCuda};
  if (text.starts_with(kCudaPrefix)) {
    const std::string_view number = text.substr(kCudaPrefix.size());
    const auto [end, status] =
        std::from_chars(number.data(), number.data() + number.size(), choice.index);
    if (status == std::errc() && end == number.data() + number.size() && choice.index >= 0) {
      return choice;
    }
  }
  return error(Errc::kInvalidArgument, "device '{}': expected auto, cpu, cuda or cuda:N", text);
}

Result<std::unique_ptr<kernels::Device>> make_rank_device(const DeviceChoice& choice,
                                                          std::optional<DType> dtype,
                                                          const CoreShare& cores) {
  using Kind = DeviceChoice::Kind;
  const bool gpu_can = dtype != DType::kFloat32;
  const bool cpu_can = dtype != DType::kFloat16;
  if (choice.kind == Kind::kCuda && !gpu_can) {
    return error(Errc::kUnsupported, "cuda computes in bfloat16 or float16, not in float32");
  }
  const bool gpu = choice.kind == Kind::kCuda ||
                   (choice.kind == Kind::kAuto && gpu_can && kernels::num_cuda_devices() > 0);
  if (gpu) return make_gpu(choice, cores);
  if (!cpu_can) {
    return error(Errc::kUnsupported,
                 "a CPU computes in float32 or bfloat16, not in float16; this process sees {} GPUs",
                 kernels::num_cuda_devices());
  }
  return kernels::make_cpu_device({.num_threads = cores.num_threads});
}

std::optional<DType> compute_dtype_on(const kernels::DeviceInfo& info, std::optional<DType> wanted,
                                      DType stored) {
  if (wanted.has_value()) return wanted;
  if (info.float32_compute) return std::nullopt;
  return info.computes_in(stored) ? stored : DType::kBFloat16;
}

}  // namespace millrace::engine
