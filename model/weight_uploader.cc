#include "model/weight_uploader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "common/check.h"
#include "model/element_conversion.h"

namespace millrace::model {

namespace {

// Small enough to stay in a core's L2 cache between conversion and copy; a longer row goes alone.
constexpr int64_t kStagingBytes = 512 << 10;

// For a copy of one staging buffer to a device: more than any working one needs.
constexpr auto kCopyTimeout = std::chrono::seconds(60);

constexpr uint16_t kFloat16Infinity = 0x7c00;

// Weights that bfloat16 or float32 has and float16 has not. A checkpoint made for float16 has none.
// `row_number` is of the slice.
Result<void> check_range(const TensorSlice& slice, int64_t row_number,
                         std::span<const Float16> row) {
  const auto beyond = [](Float16 x) { return (x.bits & 0x7fff) >= kFloat16Infinity; };
  const auto found = std::ranges::find_if(row, beyond);
  if (found == row.end()) return {};
  return error(Errc::kUnsupported,
               "row {} column {} of a [{}] weight is beyond float16's largest number, 65,504: "
               "compute in bfloat16",
               slice.first_row + row_number, slice.first_col + (found - row.begin()),
               fmt::join(slice.tensor.shape, ", "));
}

}  // namespace

TensorSlice TensorSlice::whole(Tensor tensor) {
  TensorSlice slice{.tensor = std::move(tensor)};
  slice.num_rows = slice.tensor.shape.empty() ? 1 : slice.tensor.shape[0];
  slice.num_cols = slice.tensor_cols();
  return slice;
}

TensorSlice TensorSlice::rows(int64_t first, int64_t count) const {
  MR_CHECK(first >= 0 && count >= 0 && first + count <= num_rows, "rows {} + {} of {}", first,
           count, num_rows);
  TensorSlice part = *this;
  part.first_row += first;
  part.num_rows = count;
  return part;
}

TensorSlice TensorSlice::cols(int64_t first, int64_t count) const {
  MR_CHECK(first >= 0 && count >= 0 && first + count <= num_cols, "columns {} + {} of {}", first,
           count, num_cols);
  TensorSlice part = *this;
  part.first_col += first;
  part.num_cols = count;
  return part;
}

const std::byte* TensorSlice::row_data(int64_t row) const {
  const int64_t element = (first_row + row) * tensor_cols() + first_col;
  return tensor.bytes.data() + element * dtype_bytes(tensor.dtype);
}

Result<kernels::ConstMatrix> WeightUploader::stack(std::span<const TensorSlice> slices,
                                                   DType dtype) {
  const int64_t num_cols = slices.front().num_cols;
  int64_t num_rows = 0;
  for (const auto& slice : slices) {
    MR_CHECK(slice.num_cols == num_cols, "{} columns below {}", slice.num_cols, num_cols);
    num_rows += slice.num_rows;
  }
  MR_ASSIGN_OR_RETURN(auto buffer, device_->allocate(num_rows * num_cols * dtype_bytes(dtype)));
  const auto matrix =
      kernels::dense_matrix(std::as_const(buffer).data(), dtype, num_rows, num_cols);
  auto* destination = buffer.as<std::byte>();
  for (const auto& slice : slices) {
    MR_RETURN_IF_ERROR(upload(slice, dtype, destination));
    destination += slice.num_rows * num_cols * dtype_bytes(dtype);
  }
  storage_->push_back(std::move(buffer));
  return kernels::ConstMatrix(matrix);
}

Result<const float*> WeightUploader::stacked_vector(std::span<const TensorSlice> slices) {
  MR_ASSIGN_OR_RETURN(const auto matrix, stack(slices, DType::kFloat32));
  return static_cast<const float*>(matrix.data);
}

Result<const float*> WeightUploader::vector(std::span<const float> values) {
  return stacked_vector({{TensorSlice::whole({.dtype = DType::kFloat32,
                                              .shape = {static_cast<int64_t>(values.size())},
                                              .bytes = std::as_bytes(values)})}});
}

kernels::ConstMatrix WeightUploader::in_place(const TensorSlice& slice, DType dtype) const {
  const bool reads_host_memory = device_->info().host_memory;
  const auto* data = slice.row_data(0);
  const auto alignment = static_cast<uintptr_t>(dtype_bytes(dtype));
  const bool aligned = std::bit_cast<uintptr_t>(data) % alignment == 0;
  if (!reads_host_memory || slice.tensor.dtype != dtype || !slice.contiguous() || !aligned) {
    return {};
  }
  return kernels::dense_matrix(static_cast<const void*>(data), dtype, slice.num_rows,
                               slice.num_cols);
}

Result<void> WeightUploader::upload(const TensorSlice& slice, DType dtype, std::byte* destination) {
  const int64_t row_bytes = slice.num_cols * dtype_bytes(dtype);
  if (slice.tensor.dtype == dtype && slice.contiguous()) {
    device_->copy(destination, slice.row_data(0), slice.num_rows * row_bytes);
    return device_->synchronize(Deadline::after(kCopyTimeout));
  }
  if (slice.num_rows == 0) return {};
  const int64_t rows_a_time =
      std::clamp<int64_t>(kStagingBytes / std::max<int64_t>(row_bytes, 1), 1, slice.num_rows);
  if (staging_.bytes() < rows_a_time * row_bytes) staging_ = AlignedBuffer(rows_a_time * row_bytes);
  for (int64_t row = 0; row < slice.num_rows; row += rows_a_time) {
    const int64_t count = std::min(rows_a_time, slice.num_rows - row);
    for (int64_t r = 0; r < count; ++r) {
      auto* converted = staging_.as<std::byte>() + r * row_bytes;
      convert_elements(slice.row_data(row + r), slice.tensor.dtype, slice.num_cols, converted,
                       dtype);
      if (dtype != DType::kFloat16) continue;
      MR_RETURN_IF_ERROR(check_range(
          slice, row + r,
          {reinterpret_cast<const Float16*>(converted), static_cast<size_t>(slice.num_cols)}));
    }
    device_->copy(destination + row * row_bytes, staging_.data(), count * row_bytes);
    MR_RETURN_IF_ERROR(device_->synchronize(Deadline::after(kCopyTimeout)));
  }
  return {};
}

}  // namespace millrace::model
