// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/random_fill.h"

#include <algorithm>
#include <chrono>

#include "model/checkpoint/element_conversion.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::bench {

namespace {

// Not a multiple of any row length, so that no row repeats another.
constexpr int64_t kPeriod = (1 << 20) - 3;
constexpr auto kTimeout = std::chrono::minutes(1);

}  // namespace

std::vector<float> make_normals(int64_t count, uint64_t seed) {
  std::vector<float> normals(static_cast<size_t>(count));
  for (size_t i = 0; i < normals.size(); ++i) {
    double sum = -6;
    for (uint64_t j = 0; j < 12; ++j) sum += model::mixed_uniform(seed, 12 * i + j, 0, 1);
    normals[i] = static_cast<float>(sum);
  }
  return normals;
}

Result<void> fill_with_normals(kernels::Device& device, void* data, DType dtype, int64_t count,
                               float deviation) {
  auto normals = make_normals(std::min(count, kPeriod), /*seed=*/1);
  for (float& normal : normals) normal *= deviation;
  std::vector<std::byte> elements(normals.size() * static_cast<size_t>(dtype_bytes(dtype)));
  model::convert_elements(std::as_bytes(std::span(normals)).data(), DType::kFloat32,
                          std::ssize(normals), elements.data(), dtype);
  auto* destination = static_cast<std::byte*>(data);
  for (int64_t first = 0; first < count; first += kPeriod) {
    device.copy(destination + first * dtype_bytes(dtype), elements.data(),
                std::min(kPeriod, count - first) * dtype_bytes(dtype));
  }
  return device.synchronize(Deadline::after(kTimeout));
}

}  // namespace millrace::bench
