// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/weight_uploader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/aligned_buffer.h"
#include "common/check.h"
#include "common/float8.h"
#include "common/units.h"
#include "model/checkpoint/element_conversion.h"
#include "model/checkpoint/mxfp4.h"

namespace millrace::model {

namespace {

// Small enough to stay in a core's L2 cache between conversion and copy. A longer row goes alone.
constexpr int64_t kStagingBytes = 512 << 10;

// For a copy of one staging buffer to a device: more than any working one needs.
constexpr auto kCopyTimeout = std::chrono::seconds(60);

constexpr uint16_t kFloat16Infinity = 0x7c00;

// kUnsupported for weights that bfloat16 or float32 can represent and float16 cannot. A checkpoint
// made for float16 has none. `row_number` counts within the slice.
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

// Row `row` of a transposed slice: a column of its tensor, gathered and then converted.
void convert_column(const TensorSlice& slice, int64_t row, DType dtype, std::byte* out) {
  const auto& tensor = slice.tensor;
  const auto element = static_cast<size_t>(tensor.element_bytes());
  const auto row_bytes = static_cast<size_t>(slice.tensor_cols()) * element;
  const auto* source = tensor.bytes.data() + static_cast<size_t>(slice.first_col) * row_bytes +
                       static_cast<size_t>(slice.first_row + row * slice.row_step) * element;
  std::vector<std::byte> column(static_cast<size_t>(slice.num_cols) * element);
  for (size_t i = 0; i < static_cast<size_t>(slice.num_cols); ++i) {
    std::memcpy(column.data() + i * element, source + i * row_bytes, element);
  }
  convert_elements(column.data(), tensor.dtype, slice.num_cols, out, dtype);
}

// Row `row` of a slice of MXFP4.
void convert_mxfp4_row(const TensorSlice& slice, int64_t row, DType dtype, std::byte* out) {
  const int64_t of_tensor = slice.first_row + row * slice.row_step;
  const int64_t blocks = slice.tensor_cols() / kMxfp4Block;
  convert_mxfp4(slice.tensor.bytes.data() + of_tensor * blocks * kMxfp4BlockBytes,
                slice.tensor.block_scales.data() + of_tensor * blocks, slice.first_col,
                slice.num_cols, out, dtype);
}

// Row `row` of the slice.
void convert_row(const TensorSlice& slice, int64_t row, DType dtype, std::byte* out) {
  if (slice.transposed) return convert_column(slice, row, dtype, out);
  if (slice.tensor.mxfp4) return convert_mxfp4_row(slice, row, dtype, out);
  if (!slice.tensor.float8) {
    return convert_elements(slice.row_data(row), slice.tensor.dtype, slice.num_cols, out, dtype);
  }
  const auto* source = slice.row_data(row);
  const auto& scales = *slice.tensor.scales;
  for (int64_t col = 0; col < slice.num_cols;) {
    const auto [scale, num_cols] =
        scales.run(slice.first_row + row * slice.row_step, slice.first_col + col);
    const int64_t count = std::min(num_cols, slice.num_cols - col);
    convert_float8(source + col, count, scale, out + col * dtype_bytes(dtype), dtype);
    col += count;
  }
}

// Rows [first, first + count) of the slice, consecutive at `out`.
Result<void> convert_rows(const TensorSlice& slice, int64_t first, int64_t count, DType dtype,
                          std::byte* out) {
  for (int64_t row = first; row < first + count; ++row) {
    convert_row(slice, row, dtype, out);
    if (dtype == DType::kFloat16) {
      MR_RETURN_IF_ERROR(check_range(
          slice, row,
          {reinterpret_cast<const Float16*>(out), static_cast<size_t>(slice.num_cols)}));
    }
    out += slice.num_cols * dtype_bytes(dtype);
  }
  return {};
}

// Writes row `row` of the slice as 8-bit floats and returns their scale.
float quantize_row(const TensorSlice& slice, int64_t row, Float8* out) {
  if (slice.tensor.float8) {
    const auto [scale, num_cols] =
        slice.tensor.scales->run(slice.first_row + row * slice.row_step, slice.first_col);
    if (num_cols >= slice.num_cols) {
      std::memcpy(out, slice.row_data(row), static_cast<size_t>(slice.num_cols));
      return scale;
    }
  }
  std::vector<float> values(static_cast<size_t>(slice.num_cols));
  convert_row(slice, row, DType::kFloat32, reinterpret_cast<std::byte*>(values.data()));
  return quantize_float8(values.data(), slice.num_cols, out);
}

// Stacked slices, all as wide as the first.
class Stack {
 public:
  explicit Stack(std::span<const TensorSlice> slices) : slices_(slices) {
    for (const auto& slice : slices) {
      MR_CHECK(slice.num_cols == num_cols(), "{} columns below {}", slice.num_cols, num_cols());
      first_rows_.push_back(num_rows_);
      num_rows_ += slice.num_rows;
    }
  }

  int64_t num_rows() const { return num_rows_; }
  int64_t num_cols() const { return slices_.front().num_cols; }

  // Calls use(slice, its first row, rows) for each slice that has some of the rows [first, first +
  // count), in order.
  template <typename Use>
  Result<void> for_each_slice(int64_t first, int64_t count, const Use& use) const {
    auto next = std::ranges::upper_bound(first_rows_, first) - first_rows_.begin() - 1;
    while (count > 0) {
      const auto& slice = slices_[static_cast<size_t>(next)];
      const int64_t row = first - first_rows_[static_cast<size_t>(next)];
      const int64_t rows = std::min(count, slice.num_rows - row);
      MR_RETURN_IF_ERROR(use(slice, row, rows));
      first += rows;
      count -= rows;
      ++next;
    }
    return {};
  }

 private:
  std::span<const TensorSlice> slices_;
  std::vector<int64_t> first_rows_;
  int64_t num_rows_ = 0;
};

// Calls use(first row, number of rows) for blocks of rows in ascending order, on `num_threads`
// threads, each with its own `use` from make_use(). No block begins after one has failed. Of
// several errors, the one of the first rows is returned, as on one thread. What `use` throws is
// rethrown here.
template <typename MakeUse>
Result<void> for_row_blocks(int64_t num_rows, int64_t rows_a_time, int num_threads,
                            const MakeUse& make_use) {
  std::atomic<int64_t> next_row = 0;
  std::mutex mutex;
  int64_t failed_row = num_rows;
  std::optional<Error> failure;
  std::exception_ptr thrown;
  const auto work = [&] {
    auto use = make_use();
    while (true) {
      const int64_t row = next_row.fetch_add(rows_a_time);
      if (row >= num_rows) return;
      const auto done = use(row, std::min(rows_a_time, num_rows - row));
      if (done.ok()) continue;
      next_row = num_rows;
      const std::lock_guard lock(mutex);
      if (row >= failed_row) return;
      failed_row = row;
      failure = done.error();
    }
  };
  const auto work_or_keep_exception = [&] {
    try {
      work();
    } catch (...) {  // a failed GPU: rethrown on the thread that can report it
      next_row = num_rows;
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < num_threads; ++i) others.emplace_back(work_or_keep_exception);
    work_or_keep_exception();
  }
  if (thrown) std::rethrow_exception(thrown);
  if (failure) return *failure;
  return {};
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
  part.first_row += first * row_step;
  part.num_rows = count;
  return part;
}

TensorSlice TensorSlice::every(int64_t first, int64_t step) const {
  TensorSlice part = rows(first, num_rows - first);
  part.num_rows = ceil_div(part.num_rows, step);
  part.row_step *= step;
  return part;
}

TensorSlice TensorSlice::transpose() const {
  MR_CHECK(row_step == 1 && !transposed && !tensor.float8 && !tensor.mxfp4,
           "such a slice is not transposed");
  return {.tensor = tensor,
          .first_row = first_col,
          .num_rows = num_cols,
          .first_col = first_row,
          .num_cols = num_rows,
          .transposed = true};
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
  const int64_t element = (first_row + row * row_step) * tensor_cols() + first_col;
  return tensor.bytes.data() + element * tensor.element_bytes();
}

Result<kernels::ConstMatrix> WeightUploader::stack(std::span<const TensorSlice> slices,
                                                   DType dtype) {
  const Stack stacked(slices);
  const int64_t row_bytes = stacked.num_cols() * dtype_bytes(dtype);
  MR_ASSIGN_OR_RETURN(auto buffer, device_->allocate(stacked.num_rows() * row_bytes));
  const auto matrix = kernels::dense_matrix(std::as_const(buffer).data(), dtype, stacked.num_rows(),
                                            stacked.num_cols());
  const auto is_copied = [dtype](const TensorSlice& slice) {
    return !slice.tensor.float8 && slice.tensor.dtype == dtype && slice.contiguous();
  };
  if (std::ranges::all_of(slices, is_copied)) {
    MR_RETURN_IF_ERROR(copy(slices, row_bytes, buffer.as<std::byte>()));
  } else {
    const auto convert = [&](int64_t first, int64_t count, std::byte* out) {
      return stacked.for_each_slice(first, count,
                                    [&](const TensorSlice& slice, int64_t row, int64_t rows) {
                                      auto* const to = std::exchange(out, out + rows * row_bytes);
                                      return convert_rows(slice, row, rows, dtype, to);
                                    });
    };
    MR_RETURN_IF_ERROR(upload_rows(stacked.num_rows(), row_bytes, buffer.as<std::byte>(), convert));
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

Result<void> WeightUploader::copy(std::span<const TensorSlice> slices, int64_t row_bytes,
                                  std::byte* destination) {
  for (const auto& slice : slices) {
    device_->copy(destination, slice.row_data(0), slice.num_rows * row_bytes);
    MR_RETURN_IF_ERROR(device_->synchronize(Deadline::after(kCopyTimeout)));
    destination += slice.num_rows * row_bytes;
  }
  return {};
}

template <typename Convert>
Result<void> WeightUploader::upload_rows(int64_t num_rows, int64_t row_bytes,
                                         std::byte* destination, const Convert& convert) {
  const int64_t rows_a_time =
      std::clamp<int64_t>(kStagingBytes / std::max<int64_t>(row_bytes, 1), 1, num_rows + 1);
  const int num_threads = num_rows > rows_a_time ? num_threads_ : 1;
  if (device_->info().host_memory) {
    return for_row_blocks(num_rows, rows_a_time, num_threads, [&] {
      return [&](int64_t row, int64_t count) {
        return convert(row, count, destination + row * row_bytes);
      };
    });
  }
  std::mutex device_mutex;
  return for_row_blocks(num_rows, rows_a_time, num_threads, [&] {
    return [&, staging = AlignedBuffer(rows_a_time * row_bytes)](
               int64_t row, int64_t count) mutable -> Result<void> {
      auto* converted = staging.as<std::byte>();
      MR_RETURN_IF_ERROR(convert(row, count, converted));
      const std::lock_guard lock(device_mutex);
      device_->copy(destination + row * row_bytes, converted, count * row_bytes);
      return device_->synchronize(Deadline::after(kCopyTimeout));
    };
  });
}

Result<kernels::ConstFloat8Matrix> WeightUploader::stack_float8(
    std::span<const TensorSlice> slices) {
  const Stack stacked(slices);
  const int64_t num_rows = stacked.num_rows(), num_cols = stacked.num_cols();
  MR_ASSIGN_OR_RETURN(auto codes, device_->allocate(num_rows * num_cols));
  std::vector<float> scales(static_cast<size_t>(num_rows));
  const auto quantize = [&](int64_t first, int64_t count, std::byte* out) {
    auto* to = reinterpret_cast<Float8*>(out);
    float* scale = scales.data() + first;
    return stacked.for_each_slice(
        first, count, [&](const TensorSlice& slice, int64_t row, int64_t rows) -> Result<void> {
          for (int64_t i = row; i < row + rows; ++i, to += num_cols) {
            *scale++ = quantize_row(slice, i, to);
          }
          return {};
        });
  };
  MR_RETURN_IF_ERROR(upload_rows(num_rows, num_cols, codes.as<std::byte>(), quantize));
  MR_ASSIGN_OR_RETURN(const float* device_scales, vector(scales));
  const kernels::ConstFloat8Matrix matrix{.data = codes.as<Float8>(),
                                          .scales = device_scales,
                                          .rows = num_rows,
                                          .cols = num_cols,
                                          .row_stride = num_cols};
  storage_->push_back(std::move(codes));
  return matrix;
}

}  // namespace millrace::model
