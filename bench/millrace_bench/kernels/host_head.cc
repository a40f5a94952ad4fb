// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/host_head.h"

#include <chrono>

#include "model/checkpoint/element_conversion.h"

namespace millrace::bench {

namespace {

constexpr auto kCopyTimeout = std::chrono::minutes(1);

Result<std::vector<float>> read_elements(kernels::Device& device, const void* source, DType dtype,
                                         int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  device.copy(bytes.data(), source, std::ssize(bytes));
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kCopyTimeout)));
  std::vector<float> values(static_cast<size_t>(count));
  model::convert_elements(bytes.data(), dtype, count, values.data(), DType::kFloat32);
  return values;
}

}  // namespace

Result<HostHead> read_head(kernels::Device& device, const SampleLayer& layer, int32_t query_head,
                           bool with_v) {
  const auto kv = layer.kv();
  const int32_t kv_head = query_head / (layer.shape().num_query_heads / kv.num_kv_heads);
  const int64_t count = kv.num_tokens * kv.head_dim;
  const int64_t offset = kv_head * kv.token_stride * kv.head_dim * dtype_bytes(kv.dtype);
  HostHead head;
  MR_ASSIGN_OR_RETURN(
      head.k, read_elements(device, static_cast<const std::byte*>(kv.k) + offset, kv.dtype, count));
  if (!with_v) return head;
  MR_ASSIGN_OR_RETURN(
      head.v, read_elements(device, static_cast<const std::byte*>(kv.v) + offset, kv.dtype, count));
  return head;
}

Result<std::vector<float>> read_row(kernels::Device& device, const SampleLayer& layer,
                                    const void* rows, int64_t row, int32_t query_head) {
  const auto& shape = layer.shape();
  const int64_t element = (row * shape.num_query_heads + query_head) * shape.head_dim;
  const auto* source = static_cast<const std::byte*>(rows) + element * dtype_bytes(shape.dtype);
  return read_elements(device, source, shape.dtype, shape.head_dim);
}

Result<std::vector<float>> read_floats(kernels::Device& device, const float* values,
                                       int64_t count) {
  return read_elements(device, values, DType::kFloat32, count);
}

}  // namespace millrace::bench
