// SPDX-License-Identifier: Apache-2.0
// Brings slices of mapped tensors into device memory, converted and stacked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "kernels/api/device_memory.h"
#include "kernels/api/float8_params.h"
#include "kernels/api/matrix.h"
#include "model/checkpoint/safetensors.h"

namespace millrace::model {

// A rectangle of a tensor seen as [rows, cols]; a vector is a column. Rows and columns are those of
// the tensor; in a transposed slice, rows are the tensor's columns and columns its rows.
struct TensorSlice {
  Tensor tensor;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_col = 0;
  int64_t num_cols = 0;
  int64_t row_step = 1;     // between two rows of the slice
  bool transposed = false;  // not of 8-bit floats or MXFP4

  static TensorSlice whole(Tensor tensor);
  TensorSlice rows(int64_t first, int64_t count) const;
  TensorSlice cols(int64_t first, int64_t count) const;
  // Rows `first`, `first` + `step` and so on.
  TensorSlice every(int64_t first, int64_t step) const;
  TensorSlice transpose() const;

  int64_t tensor_cols() const { return tensor.shape.size() < 2 ? 1 : tensor.shape[1]; }
  bool contiguous() const {
    return !transposed && !tensor.mxfp4 &&
           (num_rows <= 1 || (row_step == 1 && num_cols == tensor_cols()));
  }
  // `row` counts from first_row. Only for slices that are neither transposed nor MXFP4.
  const std::byte* row_data(int64_t row) const;
};

// Float8 elements are multiplied by their scales in float32, and the products are rounded once.
// `device` and `storage` outlive the uploader; `storage` gets every buffer that it makes. Tensors
// with another dtype or row length in the file are converted on `num_threads` threads. With one
// thread, converting an 8B model from bfloat16 to float16 took 15 to 25 s on an H100 machine.
class WeightUploader {
 public:
  WeightUploader(kernels::DeviceMemory& device, std::vector<kernels::DeviceBuffer>& storage,
                 int num_threads)
      : device_(&device), storage_(&storage), num_threads_(num_threads) {}

  // One dense matrix of the stacked slices, all of the same width.
  Result<kernels::ConstMatrix> stack(std::span<const TensorSlice> slices, DType dtype);
  // The same in 8-bit floats scaled by row. Rows that are 8-bit floats under one scale in the file
  // are taken as they are; others are quantised from float32.
  Result<kernels::ConstFloat8Matrix> stack_float8(std::span<const TensorSlice> slices);
  // A float32 vector in device memory.
  Result<const float*> vector(std::span<const float> values);
  Result<const float*> stacked_vector(std::span<const TensorSlice> slices);

 private:
  // Copies rows that are already in the right form in the file.
  Result<void> copy(std::span<const TensorSlice> slices, int64_t row_bytes, std::byte* destination);
  // Blocks of rows, consecutive at `destination`: converted in place where the host can
  // write there, else copied. Several threads call convert(row, count, to), each for other rows.
  // Threads and their memory are made once a call: once for 128 experts, not once for each.
  template <typename Convert>
  Result<void> upload_rows(int64_t num_rows, int64_t row_bytes, std::byte* destination,
                           const Convert& convert);

  kernels::DeviceMemory* device_;
  std::vector<kernels::DeviceBuffer>* storage_;
  int num_threads_;
};

}  // namespace millrace::model
